"""On a GPU: what a backward recomputes has the bits of the forward, for a few saved bytes."""

import pytest
import torch
from gradients import NORMS, case
from recomputed import both, forward_and_recomputed
from torch import nn
from torch._dynamo.utils import counters
from torch.utils.checkpoint import checkpoint

STRICT = {"mixorder": True, "mixorder_strict": True, "mixorder_min_numel": 0}
BF16, F32 = torch.bfloat16, torch.float32


def checkpointed(function, *first, **options):
    def step(*args):
        return checkpoint(function, *first, *args, use_reentrant=False)

    return torch.compile(step, options=STRICT | options, dynamic=False)


def differing(one, other):
    """How many elements have other bits; a NaN or a zero counts by its bits."""
    bits = {2: torch.int16, 4: torch.int32}[one.element_size()]
    return int((one.view(bits) != other.view(bits)).sum())


@pytest.mark.parametrize("dtype", [BF16, F32])
@pytest.mark.parametrize("shape", [(4096, 4096), (5000, 768), (600, 16400)])
@pytest.mark.parametrize("name", NORMS)
def test_a_norm_that_is_recomputed_has_the_bits_of_the_forward(name, shape, dtype):
    module, x, _ = case(NORMS[name], shape, dtype)
    first, second = forward_and_recomputed(checkpointed(both, module), x)
    assert counters["mixorder"]["fused_regions"] >= 1
    assert differing(first, second) == 0


class Routed(nn.Module):
    """A norm, and experts of which each token has two, as in a mixture of experts."""

    def __init__(self, name, dim, dtype, experts=8):
        super().__init__()
        self.norm, *_ = case(NORMS[name], (1, dim), dtype)
        self.router = nn.Linear(dim, experts, bias=False, device="cuda", dtype=dtype)
        self.experts = nn.Parameter(torch.randn(experts, dim, device="cuda", dtype=dtype))

    def chosen(self, y):
        return self.router(y).float().softmax(-1).topk(2, -1)

    def forward(self, x):
        y = self.norm(x)
        weights, indices = self.chosen(y)
        return x + (self.experts[indices] * weights.to(x.dtype)[..., None]).sum(1) * y


@pytest.mark.parametrize("dtype", [BF16, F32])
@pytest.mark.parametrize("name", NORMS)
def test_a_stack_of_routers_has_the_bits_of_the_forward(name, dtype):
    """Had a token gone to another expert, whole rows would differ. Without the setting, Inductor's kernels
    round bfloat16 and contract products with sums in one graph where they do not in the other."""
    stack = nn.Sequential(*(Routed(name, 1024, dtype) for _ in range(3)))
    x = torch.randn(4096, 1024, device="cuda", dtype=dtype)
    with torch._inductor.config.patch(emulate_precision_casts=True):
        first, second = forward_and_recomputed(checkpointed(both, stack), x)
    assert counters["mixorder"]["fused_regions"] >= 3
    assert differing(first, second) == 0


class Selected(torch.autograd.Function):
    """Gives the elements that its backward finds to be a row's largest two as the gradient of `probe`."""

    @staticmethod
    def forward(ctx, y, probe):
        ctx.save_for_backward(y)
        return y + probe

    @staticmethod
    def backward(ctx, grad):
        (y,) = ctx.saved_tensors
        return grad, torch.zeros_like(y).scatter(-1, y.topk(2, -1).indices, 1.0)


@pytest.mark.parametrize("dtype", [BF16, F32])
@pytest.mark.parametrize("name", NORMS)
def test_the_largest_elements_are_those_of_the_forward(name, dtype):
    module, x, _ = case(NORMS[name], (4096, 4096), dtype)

    def part(x, probe):
        y = module(x)
        return y.topk(2, -1).indices, Selected.apply(y, probe)

    probe = torch.zeros_like(x, requires_grad=True)
    chosen, result = checkpointed(part)(x.requires_grad_(), probe)
    found, *_ = torch.autograd.grad(result, [probe, x, *module.parameters()], torch.randn_like(x))
    assert counters["mixorder"]["fused_regions"] >= 1
    assert bool((found.gather(-1, chosen) == 1).all())


@pytest.mark.parametrize("dtype", [BF16, F32])
@pytest.mark.parametrize("name", NORMS)
def test_a_row_s_sums_are_all_that_the_forward_holds_in_addition(name, dtype):
    rows, cols = 8192, 4096
    module, x, _ = case(NORMS[name], (rows, cols), dtype)
    held = []
    for options in ({"mixorder": False}, {}):
        torch._dynamo.reset()
        function = checkpointed(module, **options)
        function(x.requires_grad_()).sum().backward()
        before = torch.cuda.memory_allocated()
        y = function(x)
        held.append(torch.cuda.memory_allocated() - before)
        del y
    sums = 2 if name == "layer" else 1
    assert held[1] - held[0] == sums * rows * 4


@pytest.mark.parametrize("cols", [768, 4096])
def test_gradients_are_finite_where_stock_s_are_though_a_sum_of_a_row_is_not(cols):
    """Inductor's forward adds up rows of 768 columns before it divides, so that their means are infinite. Of
    4096 columns it updates a mean."""
    module, x, _ = case(NORMS["layer"], (1024, cols), F32)
    x = (x.clamp(-1, 1) * 1e36 + 8.5e37).requires_grad_()
    finite = {}
    for on in (False, True):
        torch._dynamo.reset()
        y = checkpointed(module, mixorder=on)(x)
        found = torch.autograd.grad(y, [x, *module.parameters()], torch.randn_like(y))
        finite[on] = [t.isfinite() for t in found]
    assert counters["mixorder"]["fused_regions"] == 1
    assert all((ours | ~stock).all() for ours, stock in zip(finite[True], finite[False], strict=True))
    assert cols == 768 or all(t.all() for t in finite[True])
