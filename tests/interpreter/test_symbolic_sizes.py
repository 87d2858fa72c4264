"""Sizes that are written in several ways, and are equal by torch's guards."""

from __future__ import annotations

import copy

import torch
from running import ON
from torch import Tensor, nn

from mixorder.plugin import compile_for_interpreter
from mixorder.report import RegionRecord, collect

COLS = 24


class Pieces(nn.Module):
    """A norm over rows that the graph has in pieces behind it, as a window's attention has."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(COLS)

    def forward(self, x: Tensor, like: Tensor) -> Tensor:
        many = like.shape[0]
        y = self.norm(x * 2).view(x.shape[0], many, x.shape[1] // many, COLS)
        return y.sin().view(-1, COLS).exp()


def test_rows_in_pieces_are_the_rows() -> None:
    module = Pieces()
    torch._dynamo.reset()
    compiled = torch.compile(module, backend=compile_for_interpreter(ON), dynamic=True)
    with collect() as records:
        for many, each in ((3, 5), (4, 7)):
            x, like = torch.randn(2, many * each, COLS, requires_grad=True), torch.empty(many)
            y = compiled(x, like)
            dy = torch.randn_like(y)
            ours = torch.autograd.grad(y, [x, *module.parameters()], dy)
            wide, x = copy.deepcopy(module).double(), x.detach().double().requires_grad_()
            truth = torch.autograd.grad(wide(x, like), [x, *wide.parameters()], dy.double())
            for mine, exact in zip(ours, truth, strict=True):
                assert float((mine - exact).norm()) <= 1e-6 * float(exact.norm())
    (record,) = (r for r in records if isinstance(r, RegionRecord))
    assert "//" not in str(record.rows)
