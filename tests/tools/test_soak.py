"""What tools/soak.py finds fault with, and the batch sizes that it draws."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import soak
from soak import Growth, Memory, Record

STILL = Memory(100.0, 200.0, 300.0, 400.0)
GOOD = Record(
    wanted=100,
    steps=100,
    warmup=30,
    regions=4,
    losses=[(1 / (1 + i), 1 / (1 + i) * 1.0001) for i in range(100)],
    memory=[STILL, dataclasses.replace(STILL, allocated=101.0), STILL],
)


def test_a_short_soak(tmp_path: Path) -> None:
    out = tmp_path / "soak.json"
    asked = ["--device", "interpreter", "--steps", "8", "--sizes", "1", "--check-every", "2"]
    command = [sys.executable, soak.__file__, *asked, "--out", str(out)]
    env = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    record = json.loads(out.read_text())
    assert record["regions"] >= 2 and len(record["losses"]) == 8
    assert len(record["memory"]) == 2  # after the warm-up of six steps, and at the end


def test_what_is_as_wanted() -> None:
    assert soak.problems(GOOD, 1e-3, Growth()) == []
    assert soak.summary(GOOD, []).endswith("as wanted")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"steps": 99}, "only 99 of 100"),
        ({"regions": 0}, "fused nothing"),
        ({"losses": [*GOOD.losses[:50], (0.02, 0.021), *GOOD.losses[51:]]}, "losses differ by 4.76e-02"),
        ({"losses": [*GOOD.losses[:50], (float("nan"), 0.02), *GOOD.losses[51:]]}, "losses differ by nan"),
        ({"losses": GOOD.losses[::-1]}, "did not fall"),
        ({"compiles_after_warmup": 2}, "2 graphs were compiled"),
        ({"memory": []}, "warm-up did not end"),
        ({"memory": [STILL, dataclasses.replace(STILL, allocated=120.0), STILL]}, "allocated by 20.0 MiB"),
        ({"memory": [STILL, dataclasses.replace(STILL, device=399.0)]}, "device by 99.0 MiB"),
        ({"memory": [STILL, dataclasses.replace(STILL, process=500.0)]}, "process by 100.0 MiB"),
    ],
)
def test_each_fault_is_told(change: dict[str, object], told: str) -> None:
    found = soak.problems(dataclasses.replace(GOOD, **change), 1e-3, Growth())  # type: ignore[arg-type]
    assert found and told in found[0], found
    assert len(found) == 1 or "nan" in told


def test_every_size_comes_up_in_the_warm_up() -> None:
    sizes = list(soak.batch_sizes(0, 24, 64, 2000))
    assert len(sizes) == 2000 and set(sizes[:72]) == set(sizes) and len(set(sizes)) == 24
    assert all(1 <= n <= 64 for n in sizes) and sizes[:72] != sizes[72:144]
    assert len(list(soak.batch_sizes(0, 24, 64, 10))) == 10
