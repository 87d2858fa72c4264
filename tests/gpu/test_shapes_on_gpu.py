"""Shapes and layouts on a GPU: what Inductor makes of results that are viewed, written or gathered."""

import copy
import dataclasses

import pytest
import torch
from gradients import NORMS
from graphs import f32, randomised
from results import RESULTS, aliases
from support.compilers import STRICT
from torch._dynamo.utils import counters

from mixorder.report import collect
from mixorder.schedule.constants import FITTED
from mixorder.strategies.persistent import PERSISTENT


def poison():
    """Fill freed memory with NaN; the allocator hands it out again."""
    blocks = [
        torch.full((n,), float("nan"), device="cuda") for n in (20, 740, 2220, 100_000) for _ in range(8)
    ]
    del blocks


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", RESULTS)
def test_results(name, dynamic):
    function, shapes, regions = RESULTS[name]
    mine = tuple(torch.randn(shape, device="cuda") for shape in shapes)
    theirs, exact = tuple(t.clone() for t in mine), tuple(t.double() for t in mine)
    for x in mine[:2] if dynamic else ():
        torch._dynamo.maybe_mark_dynamic(x, 0)
    poison()
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
    poison()
    ours = run(torch.compile(lambda x: forward(module, x), options=STRICT, dynamic=dynamic), module, x)
    wide = copy.deepcopy(module).double()
    for mine, truth in zip(ours, run(lambda x: forward(wide, x), wide, x.double()), strict=True):
        assert mine.shape == truth.shape and mine.isfinite().all()
        error = float((mine.double() - truth).norm())
        assert error <= 4e-6 * (float(truth.norm()) + cancelled)


SHAPES = [(16, 16), (64, 64), (1, 20), (2, 1000), (5, 6), (67, 33), (1500, 3), (100_003, 2), (3, 8192)]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(("rows", "cols"), SHAPES)
@pytest.mark.parametrize("name", NORMS)
def test_rows_and_columns(name, rows, cols, dynamic):
    module = randomised(NORMS[name](cols), f32).cuda()
    x = torch.randn(rows, cols, device="cuda")
    check(lambda m, x: m(x), module, x, dynamic, cancelled=1e2 * rows**0.5 if cols <= 3 else 0.0)
    assert counters["mixorder"] == {"fused_regions": 1}


@pytest.mark.parametrize(
    ("rows", "cols"), [(37, 96), (1001, 304), (3000, 768), (5000, 1152), (700, 5120), (300, 6144)]
)
@pytest.mark.parametrize("name", NORMS)
def test_rows_in_chunks(name, rows, cols, plan_with):
    constants = dataclasses.replace(FITTED, chunk_saving=0.01, min_chunk=32)
    choose = lambda facts, device, split_size: PERSISTENT.choose(facts, device, split_size, constants)  # noqa: E731
    plan_with(strategies=(dataclasses.replace(PERSISTENT, choose=choose),))
    module = randomised(NORMS[name](cols), f32).cuda()
    with collect() as records:
        check(lambda m, x: m(x), module, torch.randn(rows, cols, device="cuda"))
    (record,) = records
    assert record.schedule.chunks > 1


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", NORMS)
def test_no_rows(name, dynamic):
    module = randomised(NORMS[name](20), f32).cuda()
    check(lambda m, x: m(x), module, torch.randn(0, 20, device="cuda"), dynamic)


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
