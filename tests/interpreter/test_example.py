"""The training example, at its smallest: the loss with mixorder is the loss without."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import pytest
import torch
import train_gpt
from torch._dynamo.utils import counters


@pytest.mark.skipif(torch.cuda.is_available(), reason="on a GPU the example does not interpret")
def test_the_loss_curves_lie_on_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = {"steps": 2, "batch": 2, "tokens": 8, "dim": 16}
    options = [text for name, n in sizes.items() for text in (f"--{name}", str(n))]
    monkeypatch.setattr(sys, "argv", ["train_gpt.py", *options, "--out", str(tmp_path)])
    before = counters["mixorder"]["fused_regions"]
    assert train_gpt.main() == 0
    assert counters["mixorder"]["fused_regions"] >= before + 3
    curves = json.loads((tmp_path / "loss.json").read_text())
    assert curves["stock"] == pytest.approx(curves["mixorder"], rel=1e-3) and len(curves["stock"]) == 2
    assert all(abs(loss - math.log(28)) < 1 for loss in curves["stock"])  # nothing learnt yet
    assert "mean distance over the last quarter" in capsys.readouterr().out
