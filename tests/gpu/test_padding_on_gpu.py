"""Results with gaps between their rows on a GPU: products read them as they are, and numbers are right."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from support.compilers import STRICT
from torch import nn
from torch._inductor.utils import run_and_get_code


class Head(nn.Module):
    """Logits of rows that start anywhere, and their loss."""

    def __init__(self, columns):
        super().__init__()
        self.first, self.linear = nn.Linear(256, 256), nn.Linear(256, columns)

    def forward(self, x, labels):
        return F.cross_entropy(self.linear(F.gelu(self.first(x))).float(), labels)


def gradients(function, module, x, labels):
    loss = function(x, labels)
    return torch.autograd.grad(loss, [x, *module.parameters()])


@pytest.mark.parametrize("columns", [1100, 3001, 30522])
def test_a_head(columns):
    torch.manual_seed(0)
    module = Head(columns).to("cuda", torch.bfloat16)
    x = torch.randn(1024, 256, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    labels = torch.randint(columns, (1024,), device="cuda")
    exact = copy.deepcopy(module).double()
    truth = gradients(exact, exact, x.detach().double().requires_grad_(), labels)
    torch._dynamo.reset()
    stock = gradients(torch.compile(module, options={"fx_graph_cache": False}), module, x, labels)
    torch._dynamo.reset()
    ours, codes = run_and_get_code(
        lambda: gradients(torch.compile(module, options=STRICT), module, x, labels)
    )
    # Its own memory, or that of logits which Inductor has padded.
    assert f"{-(-columns // 64) * 64}, 1)" in codes[-1] and "mixorder" in codes[-1]
    for mine, theirs, true in zip(ours, stock, truth, strict=True):
        error, allowed = (float((t.double() - true).norm() / true.norm()) for t in (mine, theirs))
        assert error <= 1.1 * allowed + 1e-5
