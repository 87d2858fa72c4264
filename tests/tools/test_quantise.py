"""What tools/quantise.py measures and prints. Its times need a GPU; the interpreter runs the rest."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import quantise
import torch
from lab.quantising import Outcome
from lab.tables import line
from support import quantised
from support.quantised import F8, different

ROOT = Path(__file__).resolve().parents[2]
US = {"limit": 80.0, "stock": 400.0, "mixorder": 100.0}


def test_it_runs_in_the_interpreter(tmp_path: Path) -> None:
    command = [sys.executable, "tools/quantise.py", "--device", "cpu", "--workers", "1", "--schedules", "1"]
    command += ["--recipes", "int8_both,int8_rows", "--shapes", "256x512", "--out", str(tmp_path)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ["PYTHONPATH"]])}
    done = subprocess.run(command, capture_output=True, text=True, env=env, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-2000:]
    found = [json.loads(line) for line in (tmp_path / "quantise.jsonl").read_text().splitlines()]
    assert [one["recipe"] for one in found] == ["int8_both", "int8_rows"]
    assert all(count == 0 for one in found for count, _ in one["differing"])
    assert all(one["us"] == {} for one in found) and found.pop()["fused"] == []
    assert all("blocks in a tile" in one["fused"][0] for one in found)
    assert (tmp_path / "quantise.md").read_text() in done.stdout


def test_what_is_wrong() -> None:
    good = Outcome("mx_both", 16384, 4096, US, {"stock": 3, "mixorder": 1}, differing=[(0, 8), (0, 4)])
    off = Outcome("squares", 16384, 4096, US, differing=[(2, 8), (0, 4)])
    inexact = Outcome("gelu_backward", 16384, 4096, US, differing=[(2, 8)])
    failed = Outcome("mx_transposed", 16384, 4096, message="no device")
    assert [quantise.is_wrong(one) for one in (good, off, inexact, failed)] == [False, True, False, True]


def test_the_page_has_the_kept_outcomes() -> None:
    """A row of the table of the H200 for each recipe that mixorder fuses, of one run."""
    page = (ROOT / "docs" / "quantise.md").read_text()
    kept = {(one.recipe, f"{one.rows}x{one.cols}"): one for one in quantise.load([quantise.KEPT])}
    (on,) = {one.on for one in kept.values()}
    assert len(kept) == 4 * len(quantised.RECIPES) and f"({on}; the records" in page
    assert quantise.report(list(kept.values())).count("\n") == len(kept) + 1
    for name, recipe in quantised.RECIPES.items():
        first, *others = (kept[name, shape] for shape in quantise.SHAPES.split(","))
        shares = [
            " -> ".join(f"{100 * one.us['limit'] / one.us[way]:.0f}" for way in ("stock", "mixorder"))
            for one in (first, *others)
        ]
        launches = f"{first.launches['stock']} -> {first.launches['mixorder']}"
        off, whole = (sum(counts) for counts in zip(*first.differing, strict=True))
        told = f"all but {off if off < 1e6 else f'{off / 1e6:.1f}'} of {whole / 1e6:.0f} million"
        row = line([recipe.title, *shares, launches, told if off else "all"])
        assert (row in page.splitlines()) == recipe.tiled, row


def test_fp4_is_the_nearest_number() -> None:
    numbers = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    x = torch.cat([torch.linspace(-7, 7, 1001), (numbers[1:] + numbers[:-1]) / 2])
    codes = quantised.e2m1(x).long()
    found = numbers[codes & 7] * torch.where(codes >= 8, -1.0, 1.0)
    distance = (x[:, None].abs() - numbers).abs()
    assert ((found - x).abs() == distance.amin(1)).all() and (found.sign() * x.sign() >= 0).all()
    assert (codes[1001:] & 1 == 0).all()  # halfway between two: to even


def test_int8_is_the_nearest_number() -> None:
    x = torch.randn(64, 128)
    data, scales = quantised.along_rows(quantised.int8, x, 64)
    factor = scales.double().repeat_interleave(64, 1)
    assert ((data.double() * factor - x.double()).abs() <= factor * 0.501).all()
    assert (data.view(64, 2, 64).abs().amax(2) == 127).all()


def test_uint8_is_the_nearest_number_above_the_zero_point() -> None:
    x = torch.randn(64, 128) + 0.5
    data, scales, zeros = quantised.along_rows(quantised.uint8, x, 64)
    factor, zero = (one.double().repeat_interleave(64, 1) for one in (scales, zeros))
    assert (((data.double() - zero) * factor - x.double()).abs() <= factor * 1.01).all()
    assert (data.view(64, 2, 64).amin(2) <= 1).all() and (data.view(64, 2, 64).amax(2) >= 254).all()


def test_mx_is_the_nearest_number_below_the_largest_power_of_two() -> None:
    """By another way than the recipe's own: each byte times its block's scale is near the element."""
    x = torch.randn(64, 128).bfloat16()
    scales, data = quantised.mx_rows(x)
    factor = torch.exp2(scales.double() - 127).repeat_interleave(32, 1)
    wanted = x.double().clamp(-448 * factor, 448 * factor)  # up to 512 are scaled so
    assert ((data.double() * factor - wanted).abs() <= wanted.abs() * 2**-4 + factor * 2**-10).all()
    assert (data.float().abs().view(64, 4, 32).amax(2) >= 256).all()


def test_elements_that_differ() -> None:
    x = torch.tensor([1.0, float("nan"), 0.0, 2.0])
    y = torch.tensor([1.0, float("nan"), -0.0, 3.0])
    assert different(x, x) == 0 and different(x, y) == 2
    assert different(x.to(F8), y.to(F8)) == 2
    negative = (x.to(F8).view(torch.uint8) | 128).view(F8)
    assert different(x.to(F8)[1:2], negative[1:2]) == 0
