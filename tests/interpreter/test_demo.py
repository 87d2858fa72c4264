"""`python -m mixorder demo` in this process, which has the interpreter; tests/cli/test_cli.py runs it as a
user does."""

from __future__ import annotations

import re

import pytest

from mixorder.cli import demo
from mixorder.errors import Decline, DeclineReason

TINY = ("--device", "interpreter", "--layers", "1", "--batch", "2", "--seq", "8", "--dim", "32")


def test_rms_norm_in_fp32_shows_its_kernels(capsys: pytest.CaptureFixture[str]) -> None:
    assert demo.main(["--norm", "rms", "--dtype", "fp32", "--show-kernel", *TINY]) == 0
    out = capsys.readouterr().out
    assert "5 regions: " in out and "Norm modules in a region: 3 of 3" in out
    names = re.findall(r"@triton\.jit\ndef (\w+)\(", out)
    assert len(names) == len(set(names)) >= 2
    errors = re.findall(r"  f32  .*  (\S+)  +(\S+)  +\S+$", out, re.MULTILINE)
    assert len(errors) > 5 and all(0 < float(error) < 3e-6 for row in errors for error in row)


def test_a_decline_is_shown_and_nothing_fused_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(region: object) -> None:
        raise Decline(DeclineReason.CYCLE, "for the test")

    monkeypatch.setattr("mixorder.region.legality.check", refuse)
    assert demo.main(["--norm", "hf", "--dtype", "fp16", *TINY]) == 1
    out = capsys.readouterr().out
    assert "for the test" in out and "FAILED: nothing was fused" in out
