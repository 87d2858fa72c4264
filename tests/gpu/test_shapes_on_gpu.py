"""Shapes and layouts on a GPU: what Inductor makes of results that are viewed, written or gathered."""

import copy

import pytest
import torch
from gradients import NORMS
from graphs import f32, randomised
from results import RESULTS, aliases
from support.compilers import STRICT
from support.inputs import poison_free_memory
from torch._dynamo.utils import counters


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", RESULTS)
def test_results(name, dynamic):
    function, shapes, regions = RESULTS[name]
    mine = tuple(torch.randn(shape, device="cuda") for shape in shapes)
    theirs, exact = tuple(t.clone() for t in mine), tuple(t.double() for t in mine)
    for x in mine[:2] if dynamic else ():
        torch._dynamo.maybe_mark_dynamic(x, 0)
    poison_free_memory()
    with torch.no_grad():
        ours = torch.compile(function, options=STRICT, dynamic=None if dynamic else False)(*mine)
        eager, exact = function(*theirs), (*function(*exact), *exact)
    assert counters["mixorder"] == {"fused_regions": regions}
    for ours_now, other, truth in zip((*ours, *mine), (*eager, *theirs), exact, strict=True):
        assert ours_now.shape == other.shape and ours_now.stride() == other.stride()
        assert float((ours_now.double() - truth).norm()) <= 2e-6 * float(truth.norm())
    assert aliases((*ours, *mine)) == aliases((*eager, *theirs))


def run(function, module, x):
    x = x.detach().requires_grad_()
    return torch.autograd.grad(function(x).sin().sum(), [x, *module.parameters()])


def check(forward, module, x, dynamic=False, cancelled=0.0):
    """`cancelled`: the size of the terms that a gradient is a difference of, where it is much larger."""
    poison_free_memory()
    ours = run(torch.compile(lambda x: forward(module, x), options=STRICT, dynamic=dynamic), module, x)
    wide = copy.deepcopy(module).double()
    for mine, truth in zip(ours, run(lambda x: forward(wide, x), wide, x.double()), strict=True):
        assert mine.shape == truth.shape and mine.isfinite().all()
        error = float((mine.double() - truth).norm())
        assert error <= 4e-6 * (float(truth.norm()) + cancelled)


LAYOUTS = {
    "slice": lambda: torch.randn(41, 64, device="cuda")[2:39, 7:27],
    "leading_dims_swapped": lambda: torch.randn(5, 7, 20, device="cuda").transpose(0, 1),
    "rows_expanded": lambda: torch.randn(1, 20, device="cuda").expand(37, 20),
    "rows_padded_in_batches": lambda: torch.randn(5, 9, 24, device="cuda")[:, 1:8, :20],
}


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", NORMS)
def test_layouts_of_x(name, layout, inside):
    """Misaligned rows included: Inductor may copy such an input, or pass it as it is."""
    module, x = randomised(NORMS[name](20), f32).cuda(), LAYOUTS[layout]()
    if inside:
        storage = torch.empty(0, device="cuda").set_(x.untyped_storage())
        size, stride, offset = x.shape, x.stride(), x.storage_offset()
        check(lambda m, s: m(s.as_strided(size, stride, offset)), module, storage)
    else:
        check(lambda m, x: m(x), module, x)
    assert counters["mixorder"] == {"fused_regions": 1}
