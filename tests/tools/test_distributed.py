"""`tools/distributed.py` on two processes of a CPU, at its smallest; what it finds right."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import distributed
import pytest
import torch
from distributed import Found, Job, right

NO_GPU = pytest.mark.skipif(torch.cuda.is_available(), reason="for a machine without a GPU")


def run(*args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, distributed.__file__, "--backend", "gloo", *args]
    return subprocess.run(command, capture_output=True, text=True)


@NO_GPU
def test_ranks_get_the_gradients_of_one_and_call_their_collectives_in_one_order() -> None:
    """Whole graphs of ranks: tests/interpreter/test_ranks.py."""
    done = run("--ways", "fsdp", "--dtypes", "fp32", "--fuse", "larger")
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    fsdp = done.stdout.splitlines()[-1].split(" | ")
    assert fsdp[0] == "| fsdp" and fsdp[3:6] == ["1 x 8, 3 x 8", "larger", "0, 3"] and fsdp[-1] == "yes |"


def test_what_is_right_on_uneven_ranks() -> None:
    small = Found("1 x 8", 0, 0, stock=1e-6, ours=1e-6, difference=1e-6, same_calls=True, calls=2)
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
