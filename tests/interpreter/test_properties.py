"""What holds of gradients whatever the kernels: of half a batch, and of inputs that are written."""

from __future__ import annotations

import torch
from graphs import NORMS as MODULES
from graphs import f32, randomised
from running import ON
from torch import nn

from mixorder.plugin import compile_for_interpreter

ROWS, COLS = 26, 20


def inputs(name: str) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    return randomised(MODULES[name](COLS), f32), torch.randn(ROWS, COLS), torch.randn(ROWS, COLS)


def test_the_backward_leaves_its_inputs_as_they_are() -> None:
    module, x, dy = inputs("layer")
    compiled = torch.compile(module, backend=compile_for_interpreter(ON), dynamic=False)
    leaf = x.clone().requires_grad_()
    y = compiled(leaf)
    copies = [t.detach().clone() for t in (leaf, dy, *module.parameters())]
    torch.autograd.grad(y, [leaf, *module.parameters()], dy)
    for tensor, copy in zip((leaf, dy, *module.parameters()), copies, strict=True):
        assert torch.equal(tensor, copy)
