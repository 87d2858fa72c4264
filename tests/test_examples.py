"""The tool for several processes and the one for real models, at their smallest; the example's own parts."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "examples")]

NO_GPU = pytest.mark.skipif(torch.cuda.is_available(), reason="for a machine without a GPU")


def run(*args: str) -> subprocess.CompletedProcess[str]:
    env = {k: v for k, v in os.environ.items() if k not in ("RANK", "TRITON_INTERPRET", "OUT")}
    env["OMP_NUM_THREADS"] = "1"
    return subprocess.run([sys.executable, *args], env=env, cwd=ROOT, capture_output=True, text=True)


def test_curves_that_part_are_told() -> None:
    import train_gpt

    straight = [2.0] * 8
    assert train_gpt.apart(straight, straight) == 0
    assert train_gpt.apart([*straight[:6], 2.1, 2.1], straight) == pytest.approx(0.05)
    assert train_gpt.APART < 0.05
    text = train_gpt.corpus(1000)
    assert torch.equal(text, train_gpt.corpus(1000)) and 5 < len(text.unique()) <= len(train_gpt.LETTERS)


@NO_GPU
def test_two_processes_get_the_gradients_of_one(tmp_path: Path) -> None:
    torchrun = ["-m", "torch.distributed.run", "--nproc_per_node=2", "--standalone"]
    done = run(*torchrun, "tools/distributed.py", "--ways", "fsdp", "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr[-3000:]
    (row,) = json.loads((tmp_path / "distributed.json").read_text())
    assert row["fused"] == 3 and 0 < row["ours"] < 2e-6 and 0 < row["single"] < 2e-6
    assert "| fsdp | 3 " in done.stdout


def test_distributed_without_torchrun_says_how() -> None:
    done = run("tools/distributed.py")
    assert done.returncode == 2 and "torchrun --nproc_per_node=2" in done.stderr


@NO_GPU
def test_uneven_ranks_call_their_collectives_in_one_order() -> None:
    done = run("tools/uneven.py", "--backend", "gloo", "--ways", "graph:hooks", "--fuse", "larger")
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert "| graph:hooks | a norm and its MLP | fp32 | 100 rows, 200 rows | larger |" in done.stdout


@NO_GPU
def test_uneven_ranks_are_ended_in_time() -> None:
    done = run("tools/uneven.py", "--backend", "gloo", "--ways", "ddp,fsdp", "--limit", "1")
    assert done.returncode == 3
    assert "out of time" in done.stderr and "not run: fsdp bf16 larger" in done.stderr


def test_what_is_right_on_uneven_ranks() -> None:
    from uneven import Found, Job, right

    small = Found("1 x 8", 0, 0, stock=1e-6, ours=1e-6, apart=1e-6, same_calls=True, calls=2, seconds=1)
    large = dataclasses.replace(small, fused=3)
    one, both, graph = (
        Job("ddp", "fp32", "larger"),
        Job("ddp", "fp32", "both"),
        Job("graph:x", "fp32", "larger"),
    )
    half = Job("ddp", "bf16", "larger")
    assert right(one, [small, large]) and right(both, [large, large]) and right(graph, [small, large])
    assert not right(one, [large, large]) and not right(both, [small, large])
    assert not right(graph, [small, small])
    for wrong in (
        {"ours": 1e-3},
        {"ours": float("inf")},
        {"stock": 1e-3},
        {"same_calls": False},
        {"calls": 0},
    ):
        assert not right(one, [small, dataclasses.replace(large, **wrong)])
    assert right(half, [small, dataclasses.replace(large, stock=8e-3, ours=1e-2)])
    assert not right(half, [small, dataclasses.replace(large, stock=8e-3, ours=2e-2)])
    declined = dataclasses.replace(small, ordered=1)
    assert right(graph, [small, declined])
