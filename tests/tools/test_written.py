"""What `tools/written.py` tells of programs, on the host and without compiling."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
import written
from lab.written import PROGRAMS, Calls, Written
from torch import Tensor, nn


def small() -> Written:
    return Written(nn.LayerNorm(8), [torch.randn(4, 8).requires_grad_()])


def broken() -> Written:
    def fail(self: Any, x: Tensor) -> Tensor:
        raise ValueError("no such program")

    return Written(Calls(fail), [torch.randn(4, 8).requires_grad_()])


def wrong(options: dict[str, Any]) -> Callable[[Any], Any]:
    """Mixorder's way gives other gradients than stock's."""
    return lambda module: module if options is written.STOCK else lambda x: module(x) * 1.5


@pytest.fixture
def on_host(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setattr(written, "DEVICE", "cpu")
    monkeypatch.setattr(written, "inductor", lambda options: lambda module: module)
    monkeypatch.setattr(written, "SLACK", (100.0, 1e6))
    monkeypatch.setattr("sys.argv", ["written.py", "--out", str(tmp_path / "written.json")])


@pytest.mark.usefixtures("on_host")
def test_a_program_that_fails_is_told_and_others_go_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(written, "PROGRAMS", {"broken": broken, "small": small})
    monkeypatch.setattr("sys.argv", [*sys.argv, "--programs", "broken", "small"])
    assert written.main() == 1
    lines = capsys.readouterr().out.splitlines()
    assert any("broken" in one and "no such program" in one for one in lines)
    assert any(one.startswith("| small") and "no pair" in one for one in lines)
    assert lines[-1] == "failed, slower or less accurate: broken"


@pytest.mark.usefixtures("on_host")
def test_larger_errors_than_stock_fail(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(written, "PROGRAMS", {"small": small})
    monkeypatch.setattr("sys.argv", [*sys.argv, "--programs", "small"])
    assert written.main() == 0
    monkeypatch.setattr(written, "inductor", wrong)
    assert written.main() == 1
    assert capsys.readouterr().out.splitlines()[-1] == "failed, slower or less accurate: small"


def test_bytes_of_a_backward() -> None:
    program = small()
    x, parameters = 4 * 8 * 4, 2 * 8 * 4
    assert program.backward_bytes([program.module(*program.inputs)]) == 3 * x + 2 * parameters
    other = Written(program.module, program.inputs, unread=[0], written=False)
    assert other.backward_bytes([program.module(*program.inputs)]) == x + 2 * parameters


def test_programs_are_made_without_data() -> None:
    for name, make in PROGRAMS.items():
        with torch.device("meta"):
            program = make()
        found = program.module(*program.inputs)
        assert program.backward_bytes([found] if isinstance(found, Tensor) else found) > 2**24, name
