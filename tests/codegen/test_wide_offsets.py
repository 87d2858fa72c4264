"""Offsets beyond 2**31 elements: no part of an index is computed in 32 bits that may not hold it.

The kernels of every strategy are made for tensors that no test could allocate, and the integers of their
text are followed as intervals (`index_intervals`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import graphs
import pytest
import sympy
import torch
from graphs import bf16, f32, i64, traced, traced_rows
from index_intervals import overflows
from support import quantised
from test_producers import kernel_of
from waits import unbounded

from mixorder.codegen.programmatic_launch import released
from mixorder.codegen.source import KernelSource, LaunchConfig
from mixorder.inductor.symbols import FloorDiv, wide_symbols
from mixorder.schedule import tile
from mixorder.strategies import STRATEGIES
from mixorder.strategies.column_blocks import COLUMN_BLOCKS
from mixorder.strategies.cooperative import COOPERATIVE
from mixorder.strategies.persistent import PERSISTENT
from mixorder.strategies.tile import TILE

X, Y, S0, S1 = (sympy.Symbol(name, integer=True, nonnegative=True) for name in ("x", "y", "s0", "s1"))


def gelu(x: Any, dy: Any) -> Any:
    dx = torch.ops.aten.gelu_backward(dy, x)
    return dx, dx.sum(0)


def sums(x: Any, dy: Any) -> Any:
    product = x * dy
    return product, product.sum(0)


def scaled(x: Any, dy: Any, r: Any) -> Any:
    """A row's values in half precision are prefetched by one tile."""
    return graphs.pair(x.float() * r, dy.float())


def parts(x: Any, dy: Any) -> Any:
    """Columns of rows that lie far apart."""
    dx, dw = graphs.pair(x[:, :768].float(), dy[:, 768:1536].float())
    return dx.to(bf16), dw


def places(x: Any, dy: Any) -> Any:
    """The number of an element, as a value."""
    rows, cols = x.shape
    number = torch.arange(rows * cols).reshape(rows, cols)
    return graphs.pair(x * number, dy)


def samples(x: Any, dy: Any) -> Any:
    return dy - (x * dy).sum(2, keepdim=True), (x * dy).sum(1)


def labels(logits: Any, labels: Any, lse: Any) -> Any:
    hits = (labels == torch.arange(logits.shape[1])) & (labels != -100)
    scaled = torch.where(hits, -1.0, 0.0)
    dx = scaled - torch.exp(logits.to(f32) - lse) * scaled.sum(1, keepdim=True)
    return dx.to(bf16), dx.sum(0).to(bf16)


def pad(x: Any, dy: Any) -> Any:
    """Behind a head that is left out."""
    dx, dw = graphs.pair(x, torch.constant_pad_nd(dy, (768, 0)))
    return dx, dw


def both(
    shape: tuple[int, ...], function: Callable[..., Any], dtype: torch.dtype = bf16, **kwargs: Any
) -> Any:
    return traced(function, (shape, dtype), (shape, dtype), **kwargs)


WHOLE = {
    (PERSISTENT.name, "rows"): lambda: graphs.rms_norm_backward(4_000_000, 768),
    (PERSISTENT.name, "chunks"): lambda: graphs.layer_norm_backward(1_000_000, 5120),
    (PERSISTENT.name, "rows off a boundary"): lambda: graphs.layer_norm_backward(1_200_000, 4097),
    (PERSISTENT.name, "columns that lie apart"): lambda: both((2**20, 2**12), graphs.pair, transposed=(0, 1)),
    (PERSISTENT.name, "rows that lie apart"): lambda: both((2**10, 2**22), parts),
    (PERSISTENT.name, "samples"): lambda: both((8192, 1024, 512), samples),
    (PERSISTENT.name, "numbers"): lambda: both((4_000_000, 768), places),
    (PERSISTENT.name, "heads"): lambda: graphs.rope_backward(64, 2**15, 32, 128),
    (PERSISTENT.name, "a head"): lambda: traced(pad, ((2**21, 1536), bf16), ((2**21, 768), bf16)),
    (PERSISTENT.name, "fetched"): lambda: traced(
        scaled, *[((4_000_000, 4096), bf16)] * 2, ((4_000_000, 1), bf16)
    ),
    (COLUMN_BLOCKS.name, "rows"): lambda: both((2**20, 2**12), gelu),
    (COLUMN_BLOCKS.name, "columns"): lambda: both((128, 16921600), sums),
    (COLUMN_BLOCKS.name, "partials"): lambda: both((2**16, 2**24), sums),
    (COOPERATIVE.name, "rows"): lambda: graphs.layer_norm_backward(80_000, 32768),
    (COOPERATIVE.name, "rows off a boundary"): lambda: graphs.layer_norm_backward(140_000, 16385),
    (COOPERATIVE.name, "labels"): lambda: traced(
        labels, ((80_000, 32000), bf16), ((80_000, 1), i64), ((80_000, 1), f32)
    ),
    (COOPERATIVE.name, "slots"): lambda: graphs.layer_norm_backward(2**28, 32768),
}


@pytest.mark.parametrize(("name", "what"), WHOLE)
def test_reductions_of_whole_rows_or_columns(name: str, what: str) -> None:
    strategy = next(s for s in STRATEGIES if s.name == name)
    loops, schedule = graphs.run_by(strategy, graphs.merged(graphs.only(WHOLE[name, what]())))
    sources = strategy.generate(loops, schedule, "test")
    assert [line for source in sources for line in overflows(source)] == []
    assert any("int64" in source.text for source in sources)
    assert [loop for source in sources for loop in unbounded(source.text)] == []
    if strategy is COOPERATIVE:
        assert "while " in sources[0].text and "bra again" in sources[0].text


SYMBOLIC = {
    "rows": lambda: traced_rows(graphs.pair, ((512, 768), f32), ((512, 768), f32)),
    "products": lambda: traced_rows(
        lambda x, dy: graphs.pair(x.reshape(-1, 768), dy.reshape(-1, 768)), *[((64, 512, 768), f32)] * 2
    ),
    "shared": lambda: traced_rows(graphs.pair, *[((64, 32768), f32)] * 2),
    "strides": lambda: traced_rows(
        lambda x, dy: graphs.pair(x.t(), dy.t()), *[((768, 512), f32)] * 2, symbolic=(1,)
    ),
    "samples": lambda: traced_rows(samples, *[((8, 64, 512), f32)] * 2, symbolic=(0, 1)),
    "numbers": lambda: traced_rows(places, *[((512, 768), f32)] * 2),
}


@pytest.mark.parametrize("what", SYMBOLIC)
def test_symbolic_sizes(what: str) -> None:
    """Each is passed in 32 bits if it fits; what is computed of them may not."""
    _, _, sources = graphs.kernels(graphs.only(SYMBOLIC[what]()))
    assert [line for source in sources for line in overflows(source)] == []
    assert any("int64" in source.text for source in sources)


FLAT, HIGH, LONG = (128, 16921600), (16921600, 128), (2**26, 64)
TILES = {
    "mixed-order 128, flat": (quantised.blocks_both, FLAT),
    "mixed-order 128, high": (quantised.blocks_both, HIGH),
    "128 in place, flat": (quantised.blocks_in_place, FLAT),
    "squares": (quantised.squares, FLAT),
    "MXFP8, flat": (quantised.mx_both, LONG[::-1]),
    "MXFP8, high": (quantised.mx_both, LONG),
    "MXFP8, square": (quantised.mx_both, (2**16, 2**16)),
    "MXFP4": (quantised.mx4_both, FLAT),
    "scales beyond 2**31": (quantised.mx_both, (2**22, 2**16)),
}


@pytest.mark.parametrize("staged", [False, True])
@pytest.mark.parametrize("what", TILES)
def test_blocks_in_a_tile(what: str, staged: bool) -> None:
    function, shape = TILES[what]
    regions = graphs.find(traced(lambda x: function(x), (shape, bf16)))
    checked = 0
    for region in (r for r in regions if r.orders is not None):
        loops, schedule = graphs.run_by(TILE, graphs.merged(region))
        facts = tile.facts_of_tile(loops)
        if staged and not facts.small:
            continue
        schedule = dataclasses.replace(schedule, results=())
        schedule = tile.through_workspace(schedule, facts) if staged else schedule
        for source in TILE.generate(TILE.place(graphs.merged(region), schedule), schedule, "test"):
            assert overflows(source) == unbounded(source.text) == []
            checked += "int64" in source.text
    assert checked or staged


@pytest.mark.parametrize(("rows", "cols"), [(2**18, 8192), (2**18, 12000), (2**17, 2**15)])
def test_values_of_rows_from_producers(rows: int, cols: int) -> None:
    _, schedule, source = kernel_of(rows, cols)
    assert schedule.produced and overflows(source) == [] and "int64" in source.text


BEFORE = {
    "a row": "x = s * 1024 + tl.arange(0, 1024)\n    tl.load(in0_ptr + (16921600 * x))",
    "what passes its mask": "x = tl.program_id(0) * 33554432\n    tl.load(in0_ptr + x, x < 5)",
    "a loop": "for i in tl.range(s, 1000):\n        tl.load(in0_ptr + i * 3000000)",
    "a function": "of(in0_ptr, tl.arange(0, 128))",
    "a number": "tl.load(in0_ptr + 3000000000)",
    "a product with zero": "tl.load(in0_ptr + 3000000000 * tl.arange(0, 1))",
    "a comparison": "tl.load(in0_ptr, tl.arange(0, 8) < 3000000000)",
    "a total": "n = s\n    for i in tl.range(0, 9):\n        n = n * 10 + 1\n    tl.load(in0_ptr + n)",
    "a branch": "n = s\n    if s < 9:\n        n = s * 16921600\n    tl.load(in0_ptr + n * 16)",
    "a register": f"tl.store(in0_ptr, {released('s.to(tl.int64)')})",
}


def written(body: str) -> KernelSource:
    text = "def of(p, x):\n    tl.load(p + x * 16921600)\n\n"
    text += f"def kernel(in0_ptr):\n    s = tl.program_id(0)\n    {body}\n"
    return KernelSource("kernel", text, ("in0",), (), (), 100, LaunchConfig((), 4, 1))


@pytest.mark.parametrize("what", BEFORE)
def test_what_the_check_finds(what: str) -> None:
    assert overflows(written(BEFORE[what]))


def test_what_the_check_leaves() -> None:
    """64 bits from the first factor on, what a branch excludes, and bits of what is loaded."""
    body = "x = s.to(tl.int64) * 1024 + tl.arange(0, 1024)\n    tl.load(in0_ptr + 16921600 * x)"
    body += "\n    if s < 9:\n        tl.load(in0_ptr + s * 100000000)"
    body += "\n    bits = tl.load(in0_ptr).to(tl.int32, bitcast=True) * 3000000"
    assert overflows(written(body)) == []


@pytest.mark.parametrize(
    ("indices", "sizes", "wide"),
    [
        ([768 * X + Y], {X: 1000, Y: 768}, ""),
        ([768 * X + Y], {X: 4_000_000, Y: 768}, "x"),
        ([X + 10**6 * Y], {X: 10**6, Y: 4096}, "y"),
        ([X + 10**6 * Y, 4096 * X], {X: 10**6, Y: 4096}, "xy"),
        ([2**30 * X + Y], {X: 2, Y: 2**29}, ""),
        ([2**30 * X + Y], {X: 2, Y: 2**30}, "y"),
        ([Y + 3 * 2**30], {Y: 10}, "y"),
        ([2**31 * X], {X: 1}, "x"),
        ([FloorDiv(2**20 * X, 3)], {X: 2**14}, "x"),
        ([768 * X + Y], {X: S0, Y: 768}, "x"),
        ([S0 * X + Y], {X: 100, Y: S0}, "xy"),
        ([S0 * X + Y], {X: 1, Y: S0}, "y"),
        ([S0], {}, ""),
        ([S0 * S1], {}, "s0"),
    ],
)
def test_what_is_in_64_bits(indices: list[Any], sizes: dict[Any, Any], wide: str) -> None:
    found = wide_symbols(indices, {symbol: sympy.sympify(n) for symbol, n in sizes.items()})
    assert "".join(sorted(map(str, found))) == wide
