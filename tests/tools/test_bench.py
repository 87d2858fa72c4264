"""The benchmark's parts that need no GPU: reference, tables, targets, options, failures."""

import json
from pathlib import Path

import bench
import pytest
import torch
from lab import backward, providers
from lab.backward import Absent, Case, Task

from mixorder.inspection.accuracy import relative_error


def test_relative_error_of_zero_reference_and_wrong_shape() -> None:
    zeros = torch.zeros(3, 4, dtype=torch.float64)
    assert relative_error(torch.full((3, 4), 2.0), zeros) == pytest.approx(48**0.5)
    assert relative_error(zeros, zeros) == 0
    with pytest.raises(ValueError, match="shape"):
        relative_error(torch.zeros(4, 3), zeros)


def test_eager_and_stock_on_the_cpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = f"--cpu-smoke --norm layer --providers eager,stock --shapes 24x40 --out {tmp_path} --dtype fp32"
    assert bench.main(argv.split()) == 0
    (row,) = [json.loads(line) for line in (tmp_path / "bench.jsonl").read_text().splitlines()]
    assert list(row["results"]) == ["eager", "stock"]
    for result in row["results"].values():
        assert not result["error"] and result["repeatable"]
        assert max(result["errors"].values()) < 1e-6 and set(result["errors"]) == {"dx", "dw", "db"}
    assert capsys.readouterr().out == (tmp_path / "report.txt").read_text()


def broken(case: Case) -> backward.Forward:
    raise RuntimeError("no kernel\nfor you")


def absent(case: Case) -> backward.Forward:
    raise Absent("not installed")


def infinite(case: Case) -> backward.Forward:
    return lambda x, w, b: x * w * torch.inf + (0 if b is None else b)


@pytest.mark.parametrize("norm", ["rms", "layer"])
def test_failing_providers_do_not_stop_the_others(norm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = {"broken": broken, "absent": absent, "infinite": infinite, "eager": providers._norm}
    monkeypatch.setattr(providers, "PROVIDERS", made)
    row = backward.work(Task(Case(norm, "fp32", "fp32", 24, 40), tuple(made), "cpu"))
    assert not row.lost and row.results["absent"].absent
    assert row.results["broken"].error == "RuntimeError: no kernel\nfor you"
    assert "not finite: dx, dw" in row.results["infinite"].error
    assert not row.results["eager"].error and row.results["eager"].errors["dx"] < 1e-6
