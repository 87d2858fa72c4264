"""`explain --check` without a GPU: a model's own gradients by mixorder versus stock's."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import mixorder
from mixorder.cli import check, explain

ANY_SIZE = {"mixorder_min_numel": 0}


@pytest.mark.parametrize(("dtype", "dropout"), [(torch.float32, 0.5), (torch.bfloat16, 0.0)])
def test_gradients_are_as_exact_as_stocks(dtype: torch.dtype, dropout: float) -> None:
    """Also after `explain`, which imports the kernels that this runs."""
    torch.manual_seed(0)
    parts = (nn.Linear(32, 32), nn.Dropout(dropout), nn.GELU(), nn.LayerNorm(32), nn.RMSNorm(32))
    model = nn.Sequential(*parts).to(dtype)
    x = torch.randn(24, 32, dtype=dtype, requires_grad=True)
    assert mixorder.explain(model, options=ANY_SIZE)(x).regions
    found = check.checked((model, (x,), {}), ANY_SIZE, None, on_gpu=False)
    assert found.regions and check.status(found) == 0, check.text(found)
    assert found.reference == ("stock" if dropout else "eager float64")
    assert {one.name for one in found.compared} >= {"input 0", "0.weight", "0.bias", "3.bias", "4.weight"}
    assert any(one.ours > 0 for one in found.compared)


def factory() -> tuple[nn.Module, torch.Tensor]:
    return nn.Sequential(nn.Linear(32, 32), nn.LayerNorm(32)), torch.randn(8, 32)


@pytest.mark.parametrize(
    ("least", "status", "verdict"),
    [
        (0, 0, "OK: all 5 are as exact as stock's (1 region fused)."),
        (65536, 1, "FAILED: nothing was fused, so nothing was checked"),
    ],
)
def test_the_command(capsys: pytest.CaptureFixture[str], least: int, status: int, verdict: str) -> None:
    args = [f"{__name__}:factory", "--device", "cpu", "--check", "--min-numel", str(least)]
    assert explain.main(args) == status
    said = capsys.readouterr()
    assert verdict in said.out and "ref from eager float64" in said.out and "which is slow" in said.err
