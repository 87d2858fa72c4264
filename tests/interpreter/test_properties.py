"""What holds of gradients whatever the kernels: of half a batch, and of inputs that are written."""

from __future__ import annotations

import pytest
import torch
from graphs import NORMS as MODULES
from graphs import PAIRED_NORMS, f32, randomised
from running import ON, exact_gradients, gradients
from torch import nn
from torch._dynamo.utils import counters

from mixorder.plugin import compile_for_interpreter

ROWS, COLS = 26, 20


def inputs(name: str) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    return randomised(MODULES[name](COLS), f32), torch.randn(ROWS, COLS), torch.randn(ROWS, COLS)


@pytest.mark.parametrize(("name", "at"), list(zip(PAIRED_NORMS, (1, 13, 21, 25), strict=True)))
def test_gradients_of_two_parts_of_a_batch_add_up(name: str, at: int) -> None:
    module, x, dy = inputs(name)
    dx, *whole = gradients(module, x, dy, ON)
    first, second = (gradients(module, x[part], dy[part], ON) for part in (slice(at), slice(at, None)))
    assert counters["mixorder"]["fused_regions"] == 3
    torch.testing.assert_close(torch.cat([first[0], second[0]]), dx, atol=1e-6, rtol=1e-6)
    truths = exact_gradients(module, x, dy)[1:]
    for one, other, both, truth in zip(first[1:], second[1:], whole, truths, strict=True):
        for found in (one + other, both):
            assert float((found - truth).norm()) <= 1e-6 * float(truth.norm())


def test_a_mutation_between_forward_and_backward_is_caught() -> None:
    """By autograd, as in eager: what the compiled forward has saved is what was its input."""
    module, x, dy = inputs("layer")
    for function in (module, torch.compile(module, backend=compile_for_interpreter(ON), dynamic=False)):
        leaf = x.clone().requires_grad_()
        hidden = leaf * 1
        y = function(hidden)
        with torch.no_grad():
            hidden.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.backward(dy)
    with torch.no_grad():
        module.weight.add_(1)
    y = function(leaf)
    with torch.no_grad():
        module.weight.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward(dy)


def test_the_backward_leaves_its_inputs_as_they_are() -> None:
    module, x, dy = inputs("layer")
    compiled = torch.compile(module, backend=compile_for_interpreter(ON), dynamic=False)
    leaf = x.clone().requires_grad_()
    y = compiled(leaf)
    copies = [t.detach().clone() for t in (leaf, dy, *module.parameters())]
    torch.autograd.grad(y, [leaf, *module.parameters()], dy)
    for tensor, copy in zip((leaf, dy, *module.parameters()), copies, strict=True):
        assert torch.equal(tensor, copy)
