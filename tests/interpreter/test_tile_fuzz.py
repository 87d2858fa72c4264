"""Random casts by blocks, several at once: what ends within tiles gives eager's results, bit by bit."""

from __future__ import annotations

import collections
import dataclasses
from typing import Any

import pytest
import torch
from graphs import bf16, f16, f32, f64, traced
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from running import ON
from support.quantised import different

from mixorder import pipeline, planning
from mixorder.plugin import prepare_interpreter
from mixorder.report import RegionRecord, collect
from mixorder.schedule.tile import through_workspace
from mixorder.strategies import STRATEGIES
from mixorder.strategies.persistent import PERSISTENT
from mixorder.strategies.tile import TILE

LARGEST = {torch.float8_e4m3fn: 448.0, torch.float8_e5m2: 57344.0, torch.int8: 127.0}
BEFORE = {
    "nothing": lambda x, y, r, c: x,
    "product": lambda x, y, r, c: x * y,
    "columns": lambda x, y, r, c: x + c,
    "rows": lambda x, y, r, c: (x.float() * r).to(x.dtype),
    "relu": lambda x, y, r, c: torch.where(y > 0, x, 0.0),
    "moved": lambda x, y, r, c: (x - y).t().contiguous().t(),
    # Of whole rows, exact in any order; padding by zeros would count in both.
    "largest": lambda x, y, r, c: (x.float() - (-x.float().abs() - 1).amax(1, keepdim=True)).to(x.dtype),
    "counted": lambda x, y, r, c: (x.float() * ((x > 0).float() + 3).sum(1, keepdim=True)).to(x.dtype),
}
SPECIAL = (0.0, float("inf"), float("nan"), 1e-39)


@dataclasses.dataclass(frozen=True)
class Cast:
    """One cast: along rows, columns or squares, by blocks of so many elements. `transposed`: of `x.t()`.
    `packed`: the low halves of two bytes in one, where the dtype is an integer."""

    side: str
    block: int
    transposed: bool
    power: bool
    dtype: torch.dtype
    packed: bool = False

    def of(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        rows, cols = x.shape
        n, square = self.block, self.side == "square"
        if self.transposed:
            x = x.t().contiguous()
            rows, cols = cols, rows
        along_rows = square or (self.side == "rows") != self.transposed
        along_columns = square or not along_rows
        down, across = (n if along_columns else 1), (n if along_rows else 1)
        blocks = x.view(rows // down, down, cols // across, across)
        largest = blocks.abs().amax((1, 3), keepdim=True).float()
        if self.power:
            exponent = (((largest.view(torch.int32) >> 23) & 255) - 135).clamp(-127, 128)
            scale = ((exponent + 127) << 23).view(f32).clamp(min=2**-126)
            values = blocks.float() / scale
        else:
            scale = LARGEST[self.dtype] / largest.clamp(min=1e-12)
            values = blocks.float() * scale
        if self.dtype == torch.int8:
            values = values.nan_to_num(0.0).round()
        values = values.clamp(-LARGEST[self.dtype], LARGEST[self.dtype])
        data = values.to(self.dtype).view(rows, cols)
        if self.packed and self.dtype == torch.int8:
            data = (data[:, ::2] & 15) | (data[:, 1::2] << 4)
        return scale.view(rows // down, cols // across), data.t() if self.transposed else data


casts = st.builds(
    Cast,
    st.sampled_from(["rows", "columns", "square"]),
    st.sampled_from([16, 32, 64, 128]),
    st.booleans(),
    st.booleans(),
    st.sampled_from(list(LARGEST)),
    st.booleans(),
)
EXTRA_RESULTS = {
    "nothing": lambda z: (),
    "columns": lambda z: (z.amax(0),),  # which needs all rows
    "all": lambda z: (z.abs().amax(), z.min()),
    "rows of both orders": lambda z: (z.amax(1), z.t().amin(1)),
}
seen: collections.Counter[str] = collections.Counter()


def with_staging(*args: Any) -> Any:
    """The chosen schedule, whose small results go through a workspace, however few they are."""
    return through_workspace(TILE.choose(*args), args[0]).changed(dependent=True)


STAGING = tuple(dataclasses.replace(s, choose=with_staging) if s is TILE else s for s in STRATEGIES)


def check(
    shape: tuple[int, int],
    dtype: torch.dtype,
    before: str,
    kinds: list[Cast],
    extra: str = "nothing",
    staged: bool = False,
) -> None:
    torch.manual_seed(0)
    x, y = (torch.randn(shape) * torch.exp2(torch.randint(-8, 8, (shape[0], 1))) for _ in range(2))
    for i, value in enumerate(SPECIAL):
        x[16 * i : 16 * i + 16, 32 * i : 32 * i + 32] = value
    args = (x.to(dtype), y.to(dtype), torch.rand(shape[0], 1) + 0.5, torch.randn(shape[1]).to(dtype))

    def function(*args: Any) -> Any:
        z = BEFORE[before](*args)
        results = [result for kind in kinds for result in kind.of(z)]
        return *results, *EXTRA_RESULTS[extra](z)

    prepare_interpreter()
    graph = traced(function, *[(tuple(a.shape), a.dtype) for a in args])
    strategies = planning.planning_with(strategies=STAGING if staged else STRATEGIES)
    with collect() as records, strategies:
        pipeline.run(graph, ON)
    graph.lint()
    seen["staged"] += sum(
        "_place_" in k.name for r in records if isinstance(r, RegionRecord) for k in r.kernels
    )
    seen["producers"] += sum(isinstance(r, RegionRecord) and r.schedule.produced is not None for r in records)
    fused = {r.strategy.partition(",")[0] for r in records if isinstance(r, RegionRecord)}
    seen.update(fused)
    ours = torch.fx.Interpreter(torch.fx.GraphModule({}, graph)).run(*args)
    # A pair, such as of blocks along rows and a maximum of columns, rounds at other places, as Inductor does.
    if fused <= {TILE.name} or dtype == f32 or before == "nothing":
        for mine, eager in zip(ours, function(*args), strict=True):
            assert different(mine, eager) == 0


@settings(max_examples=8, deadline=None, derandomize=True, phases=[Phase.generate])
@given(
    st.sampled_from([(128, 256), (256, 128), (384, 128), (128, 640), (128, 1152)]),
    st.sampled_from([bf16, f16, f32, f64]),
    st.sampled_from(sorted(BEFORE)),
    st.lists(casts, min_size=1, max_size=3),
    st.sampled_from(sorted(EXTRA_RESULTS)),
    st.booleans(),
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's, of planted infinities
def test_casts_by_blocks(
    shape: tuple[int, int], dtype: torch.dtype, before: str, kinds: list[Cast], extra: str, staged: bool
) -> None:
    check(shape, dtype, before, kinds, extra, staged)


def test_tiles_were_among_them() -> None:
    check((128, 256), bf16, "product", [Cast("columns", 32, True, True, torch.float8_e4m3fn)], staged=True)
    assert seen[TILE.name] and seen["staged"]


@pytest.mark.parametrize(("before", "cols"), [("largest", 640), ("counted", 512)])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_values_of_whole_rows_from_producers(before: str, cols: int) -> None:
    seen_before = seen["producers"]
    kinds = [
        Cast("rows", 32, False, True, torch.float8_e4m3fn),
        Cast("columns", 32, True, True, torch.float8_e4m3fn),
    ]
    check((256, cols), bf16, before, kinds, "columns")
    assert seen["producers"] == seen_before + 1


def test_blocks_of_many_lengths() -> None:
    """Squares within squares, beside a maximum of whole columns, have more axes than there are letters."""
    kinds = [Cast("square", n, False, False, torch.float8_e4m3fn) for n in (64, 32, 16)]
    check((128, 640), bf16, "nothing", kinds, "columns")


def test_packed_codes_beside_a_maximum_of_columns() -> None:
    """A pair writes the codes of two casts."""
    before = seen[PERSISTENT.name]
    kinds = [Cast("rows", n, False, n == 64, torch.int8, True) for n in (16, 64)]
    check((128, 256), f32, "moved", kinds, "columns")
    assert seen[PERSISTENT.name] == before + 1
