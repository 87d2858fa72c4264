"""Shapes and layouts: ratios of rows to columns, inputs that are views, results that are viewed or written.

Fresh buffers hold NaN (conftest.py), so an element that no program writes shows.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from graphs import HFRMSNorm, f32, randomised
from grids import crossed
from results import RESULTS, aliases
from running import ON, Tensors
from support.around import StarReLU, Temperature
from torch import nn

from mixorder.errors import Decline
from mixorder.plugin import compile_for_interpreter
from mixorder.report import RegionRecord, collect

NORMS: dict[str, Callable[[int], nn.Module]] = {"layer": nn.LayerNorm, "rms": nn.RMSNorm, "hf": HFRMSNorm}
Forward = Callable[..., torch.Tensor]
Loss = Callable[[torch.Tensor], torch.Tensor]


def sine(y: torch.Tensor) -> torch.Tensor:
    """A loss whose gradient differs from element to element."""
    return (y.sin() * y).sum()


def norm(name: str, cols: int) -> nn.Module:
    return randomised(NORMS[name](cols), f32)


def run(function: Callable[..., Any], module: nn.Module, xs: Tensors, loss: Loss) -> Tensors:
    xs = tuple(x.detach().requires_grad_() for x in xs)  # keeps the strides
    return torch.autograd.grad(loss(function(*xs)), [*xs, *module.parameters()])


def compare(
    forward: Forward,
    module: nn.Module,
    xs: Tensors,
    loss: Loss = sine,
    dynamic: bool = False,
    cancelled: float = 0.0,
) -> list[RegionRecord | Decline]:
    """Gradients, with mixorder no further from float64's than eager's; gives what became of the regions.

    `cancelled`: the size of the terms that a gradient is a difference of, where it is much larger.
    """
    with collect() as records:
        torch._dynamo.reset()
        backend = compile_for_interpreter(ON)
        function = torch.compile(lambda *xs: forward(module, *xs), backend=backend, dynamic=dynamic)
        ours = run(function, module, xs, loss)
    eager = run(lambda *xs: forward(module, *xs), module, xs, loss)
    exact_module = copy.deepcopy(module).double()
    wide = tuple(x.double() for x in xs)
    exact = run(lambda *xs: forward(exact_module, *xs), exact_module, wide, loss)
    terms = max(sum(x.numel() for x in xs), 1)
    for mine, theirs, truth in zip(ours, eager, exact, strict=True):
        assert mine.dtype == theirs.dtype and mine.shape == theirs.shape and mine.isfinite().all()
        my_error, their_error = (float((t.double() - truth).norm()) for t in (mine, theirs))
        size = float(truth.norm()) + cancelled
        assert my_error <= 1.1 * their_error + 2 * torch.finfo(f32).eps * terms**0.5 * size
    return records


class ScaledByColumn(nn.Module):
    """A learned scale of each column, behind no bias."""

    def __init__(self, cols: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(cols))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sin() * self.weight


def apply(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return module(x)


RATIOS = [(17, 17), (1, 20), (3, 4097), (5, 6), (1500, 3), (4099, 2), (1, 1), (30, 1), (13, 768)]


# Those at which symbolic sizes may be taken for others, or for 1, and two plain ones.
DYNAMIC = [(16, 16), (1, 20), (67, 33), (1500, 3), (1, 1)]


@pytest.mark.parametrize(
    ("name", "ratio", "dynamic"),
    [
        (("layer", "rms")[(i + dynamic) % 2], ratio, dynamic)
        for dynamic, ratios in enumerate((RATIOS, DYNAMIC))
        for i, ratio in enumerate(ratios)
    ],
)
def test_rows_and_columns(name: str, ratio: tuple[int, int], dynamic: int) -> None:
    rows, cols = ratio
    x = torch.randn(rows, cols)
    # Along few columns a norm's dx is a small difference of terms as large as rstd times dy.
    cancelled = 1e2 * rows**0.5 if cols <= 3 else 0.0
    (record,) = compare(apply, norm(name, cols), (x,), dynamic=bool(dynamic), cancelled=cancelled)
    assert isinstance(record, RegionRecord) and record.space.cols == cols
    # Dynamo never makes a 1 symbolic, and takes equal sizes for one, here the weight's.
    assert isinstance(record.space.rows, str) == (dynamic == 1 and rows not in (1, cols))


@pytest.mark.parametrize(
    ("name", "shape", "dynamic"), crossed(["layer", "hf"], [(0, 20), (3, 0, 20)], [False, True])
)
def test_no_rows(name: str, shape: tuple[int, ...], dynamic: bool) -> None:
    """There is nothing to fuse; the weights' gradients are zero, not what was in memory."""
    assert compare(apply, norm(name, 20), (torch.randn(shape),), dynamic=dynamic) == []


def test_unbacked_rows_are_left_alone() -> None:
    """Nothing is known of such a size, not even that it is not zero: no region, and no error."""
    module = norm("layer", 16)
    torch._dynamo.reset()
    compiled = torch.compile(module, backend=compile_for_interpreter(ON))
    with collect() as records:
        for rows in (5, 9, 1, 0):
            x, dy = torch.randn(rows, 16, requires_grad=True), torch.randn(rows, 16)
            torch._dynamo.decorators.mark_unbacked(x, 0)
            inputs = [x, *module.parameters()]
            ours = torch.autograd.grad(compiled(x), inputs, dy)
            for mine, theirs in zip(ours, torch.autograd.grad(module(x), inputs, dy), strict=True):
                torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=1e-5)
    assert records == []


# x of many layouts, outside and inside the compiled function.

INPUTS: dict[str, tuple[Forward, Callable[[], torch.Tensor]]] = {
    "row_stride_above_cols": (apply, lambda: torch.randn(37, 24)[:, :20]),
    "slice_with_offset": (apply, lambda: torch.randn(41, 64)[2:39, 7:27]),
    "every_other_row": (apply, lambda: torch.randn(37, 20)[::2]),
    "leading_dims_swapped": (apply, lambda: torch.randn(5, 7, 20).transpose(0, 1)),
    "leading_dims_rolled": (apply, lambda: torch.randn(3, 5, 7, 20).permute(2, 0, 1, 3)),
    "rows_expanded": (apply, lambda: torch.randn(1, 20).expand(37, 20)),
    "middle_dim_expanded": (apply, lambda: torch.randn(5, 1, 20).expand(5, 7, 20)),
    "columns_expanded": (apply, lambda: torch.randn(37, 1).expand(37, 20) + torch.zeros(20)),
    "rows_overlap": (apply, lambda: torch.randn(200).as_strided((37, 20), (3, 1))),
    "rows_padded_in_batches": (apply, lambda: torch.randn(5, 9, 24)[:, 1:8, :20]),
    "sliced_inside": (lambda m, x: m(x[:, 8:28]), lambda: torch.randn(37, 64)),
    "swapped_inside": (lambda m, x: m(x.transpose(0, 1)), lambda: torch.randn(5, 7, 20)),
    "expanded_inside": (lambda m, x: m(x[:, None].expand(5, 7, 20)), lambda: torch.randn(5, 20)),
    "chunk_of_qkv": (
        lambda m, x: torch.cat([m(x.chunk(3, -1)[0]), m(x.chunk(3, -1)[1]), x.chunk(3, -1)[2]], -1),
        lambda: torch.randn(37, 60),
    ),
}


@pytest.mark.parametrize(
    ("layout", "name", "dynamic"),
    [(layout, ("layer", "hf")[i % 2], False) for i, layout in enumerate(INPUTS)]
    + [(layout, "layer", True) for layout in [*INPUTS][1::4]],
)
def test_layouts_of_x(layout: str, name: str, dynamic: bool) -> None:
    forward, make = INPUTS[layout]
    records = compare(forward, norm(name, 20), (make(),), dynamic=dynamic)
    if layout == "chunk_of_qkv" and dynamic:
        # Dynamo guards on (width + 2) // 3 == 20 and leaves the width symbolic in what it copies.
        assert [r.reason.value for r in records if isinstance(r, Decline)] == ["dynamic-shape"] * 2
        return
    assert len(records) == (2 if layout == "chunk_of_qkv" else 1)
    assert all(isinstance(r, RegionRecord) and r.space.cols == 20 for r in records)


# What the rest of the model makes of y decides on dy's layout.

GRADS: dict[str, Loss] = {
    "expanded_scalar": lambda y: y.sum(),
    "expanded_columns": lambda y: y.mean(-1).sin().sum(),
    "expanded_rows": lambda y: y.mean(0).sin().sum(),
    "padded": lambda y: nn.functional.pad(y, (2, 3)).sin().sum(),
    "slice_of_wider": lambda y: torch.cat([y, y * 2], -1).sin().sum(),
    "half_of_it_unused": lambda y: y[..., 3:11].sin().sum(),
    "swapped_leading_dims": lambda y: y.reshape(-1, 1, 20).transpose(0, 1).sin().sum(),
}


@pytest.mark.parametrize(("grad", "inside"), crossed(GRADS, [False, True]))
def test_layouts_of_dy(grad: str, inside: bool) -> None:
    """With the loss inside the graph dy is computed there; with it outside, dy is an input."""
    loss = GRADS[grad]
    forward: Forward = (lambda m, x: loss(m(x))) if inside else apply
    records = compare(forward, norm("layer", 20), (torch.randn(37, 20),), torch.sum if inside else loss)
    # The mean over rows is a pair with the norm's moments, in the forward.
    assert [type(r) for r in records] == [RegionRecord] * (1 + (inside and grad == "expanded_rows"))


# Read across memory: copied if it is the smaller part, else declined, and nothing is changed.


def test_every_other_column_is_copied() -> None:
    x = torch.randn(37, 40)[:, ::2]
    (record,) = compare(apply, norm("layer", 20), (x,))
    assert isinstance(record, RegionRecord) and record.traffic.copied == 37 * 20 * 4


# Results that are viewed, written, returned twice, or gathered in a larger buffer.


@pytest.mark.parametrize("name", [*RESULTS][::2])
def test_results_of_symbolic_rows(name: str) -> None:
    """Those of static rows are run by Inductor's wrapper code (tests/inductor/test_layouts.py)."""
    function, shapes, regions = RESULTS[name]
    mine = tuple(torch.randn(shape) for shape in shapes)
    theirs, exact = tuple(t.clone() for t in mine), tuple(t.double() for t in mine)
    torch._dynamo.reset()
    for x in mine[:2]:
        torch._dynamo.maybe_mark_dynamic(x, 0)
    with torch.no_grad(), collect() as records:
        ours = torch.compile(function, backend=compile_for_interpreter(ON))(*mine)
        eager = function(*theirs)
        exact = (*function(*exact), *exact)
    assert [type(r) for r in records] == [RegionRecord] * regions
    assert all(isinstance(r.space.rows, str) for r in records if isinstance(r, RegionRecord))
    for ours_now, other, truth in zip((*ours, *mine), (*eager, *theirs), exact, strict=True):
        assert ours_now.shape == other.shape and ours_now.stride() == other.stride()
        torch.testing.assert_close(ours_now.double(), truth, atol=1e-4, rtol=1e-4)
    assert aliases((*ours, *mine)) == aliases((*eager, *theirs))


WHOLE: dict[str, Callable[[torch.Size], nn.Module]] = {
    "two sums": lambda _: StarReLU(),
    "one": lambda _: nn.PReLU(),
    "of columns": lambda shape: nn.PReLU(shape[1]) if len(shape) == 2 else ScaledByColumn(shape[-1]),
    "beside rows": lambda _: Temperature(1),
    "a scalar": lambda _: Temperature(),
}


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize(
    "shape", [(37, 60), (1, 60), (61, 1), (2, 9001), (3, 5, 60), (2, 3, 5, 7), (1, 5, 1), (300, 3), (0, 60)]
)
def test_sums_of_all_elements(name: str, shape: tuple[int, ...]) -> None:
    """Alone or beside a sum along each row, they are added up in two steps, or left to Inductor."""
    x = torch.randn(shape)
    module = WHOLE[name](x.shape)
    records = compare(apply, module, (x,), cancelled=float(x.norm()))
    regions = [r for r in records if isinstance(r, RegionRecord)]
    assert all(len(r.outer) == (2 if name == "two sums" else 1) for r in regions)
    is_pair = isinstance(module, Temperature)
    assert bool(regions) == (x.numel() > shape[-1] and (is_pair or shape[-1] > 1))


def test_a_sum_of_all_elements_in_another_order() -> None:
    for x in (
        torch.randn(3, 6, 7, 5).permute(0, 3, 1, 2),
        torch.randn(40, 30).t(),
        torch.randn(30, 80)[:, ::2],
    ):
        compare(apply, StarReLU(), (x,), cancelled=float(x.norm()))
