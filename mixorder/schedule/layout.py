"""How a tile's elements lie in memory, read off an index map by evaluating it over a part of the tile."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence

import sympy

from ..inductor.symbols import INDEX_FUNCTIONS
from ..ir.hardware import ACCESS
from ..ir.program import Load, LoopProgram, Store

SAMPLE = 32  # elements along each side of the part of a tile that is evaluated


Sizes = tuple[tuple[sympy.Symbol, int], ...]
"""The symbols of rows and columns, and how many there are."""


def along_rows(program: LoopProgram, stmt: Load | Store) -> bool:
    """Whether a tensor's elements lie next to each other along the rows only: two of them in each access."""
    item = program.buffer(stmt.buffer).dtype.itemsize
    _, down = per_access(stmt.index.xreplace(dict(program.hints)), sizes_of(program), item)
    return down


def sizes_of(program: LoopProgram) -> Sizes:
    """Of a tile's axes; a traced size may be 0."""
    return tuple((axis.symbol, max(1, program.hint(axis.size))) for axis in program.tile_axes)


@functools.lru_cache(maxsize=4096)
def per_access(index: sympy.Expr, sizes: Sizes, item: int) -> tuple[int, bool]:
    """Elements that a thread moves at once, at most 16 bytes: contiguous along the columns, or (True) the
    rows, and starting at a multiple of themselves, wherever the loops of a batch stand."""
    (row, rows), (col, cols) = sizes
    begins = offsets(index, sizes, (1, 1))[0]
    steps = [
        offsets(index.xreplace({symbol: sympy.S.One}), sizes, (1, 1))[0] - begins
        for symbol in index.free_symbols - {row, col}
    ]
    for down, extent in ((False, cols), (True, rows)):
        most = max(1, ACCESS // item)
        while any(step % most for step in steps):
            most //= 2
        while most > 1 and not _is_wide(index, sizes, most, down, extent):
            most //= 2
        if most > 1:
            return most, down
    return 1, False


def _is_wide(index: sympy.Expr, sizes: Sizes, most: int, down: bool, extent: int) -> bool:
    """Whether accesses of `most` elements, along the rows if `down`, are possible in a part of the space."""
    if extent < most:
        return False
    runs = min(4, extent // most) * most  # of accesses one after the other
    along = offsets(index, sizes, (runs, 1) if down else (1, runs))
    across = offsets(index, sizes, (1, SAMPLE) if down else (SAMPLE, 1))
    starts = [*along[::most], *across]
    contiguous = all(
        b - a == 1 for i in range(0, runs, most) for a, b in itertools.pairwise(along[i : i + most])
    )
    return contiguous and all(at % most == starts[0] % most for at in starts)


@functools.lru_cache(maxsize=4096)
def offsets(index: sympy.Expr, sizes: Sizes, shape: tuple[int, int]) -> Sequence[int]:
    """The index over a part of the space, at 0 of all other loops."""
    (row, rows), (col, cols) = sizes
    at = _function(index, row, col)
    return [at(x, y) for x in range(min(shape[0], rows)) for y in range(min(shape[1], cols))]


def _function(index: sympy.Expr, row: sympy.Symbol, col: sympy.Symbol) -> Callable[[int, int], int]:
    zeros = dict.fromkeys(index.free_symbols - {row, col}, sympy.S.Zero)
    plain = sympy.expand(index.xreplace(zeros))
    a, b = plain.coeff(row), plain.coeff(col)
    rest = plain - a * row - b * col
    if a.is_number and b.is_number and rest.is_number:
        start, down, right = int(rest), int(a), int(b)
        return lambda x, y: start + down * x + right * y
    return sympy.lambdify([row, col], plain, modules=[INDEX_FUNCTIONS, "math"])  # type: ignore[no-any-return]
