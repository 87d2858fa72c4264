"""The training example, at its smallest: the losses with mixorder are those without."""

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
    sizes = {"steps": 2, "batch": 2, "tokens": 8, "dim": 16, "seeds": 2}
    options = [text for name, n in sizes.items() for text in (f"--{name}", str(n))]
    monkeypatch.setattr(sys, "argv", ["train_gpt.py", *options, "--out", str(tmp_path)])
    before = counters["mixorder"]["fused_regions"]
    assert train_gpt.main() == 0
    assert counters["mixorder"]["fused_regions"] >= before + 3
    curves = json.loads((tmp_path / "loss.json").read_text())
    assert len(curves["stock"]) == 2 and curves["stock"][0] != curves["stock"][1]
    for stock, ours in zip(curves["stock"], curves["mixorder"], strict=True):
        assert stock == pytest.approx(ours, rel=1e-3) and len(stock) == 2
        assert all(abs(loss - math.log(256)) < 1 for loss in stock)  # nothing learnt yet
    assert "standard deviation between seeds" in capsys.readouterr().out
