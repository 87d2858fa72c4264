"""The work of a kernel: sectors, requests and instructions of small loops, counted by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from graphs import bf16, f32, only, pair, traced

from mixorder.lowering.lower import lower
from mixorder.schedule.facts import PRICES
from mixorder.schedule.work import (
    ADDRESS,
    SECTOR,
    Access,
    Work,
    accesses,
    computing,
)

ROWS, COLS = 64, 256
N = ROWS * COLS
FULL = ((ROWS, COLS), f32)
A_ROW, A_SQUARE = (1, COLS), (32, 32)  # tiles


def inner(function: Any, *specs: Any, tile: tuple[int, int] = A_ROW) -> dict[str, Access]:
    """The accesses of the nest that reduces along rows, by buffer; `in0` is read first by the graph."""
    program = lower(only(traced(function, *specs)))
    nest = program.nests[0]
    return {a.buffer: a for a in accesses(program, nest, nest.statements, tile)}


@pytest.mark.parametrize("tile", [A_ROW, A_SQUARE])
@pytest.mark.parametrize(("dtype", "item"), [(f32, 4), (bf16, 2), (torch.float64, 8)])
def test_contiguous_tensors_move_their_bytes(tile: tuple[int, int], dtype: torch.dtype, item: int) -> None:
    full = ((ROWS, COLS), dtype)
    found = inner(pair, full, full, tile=tile)
    assert set(found) == {"in0", "in1", "out0"}
    for access in found.values():
        assert (access.touched, access.dram, access.l2) == (N * item, N * item, N * item)
        assert access.requests == N * item / 16  # of 16 bytes
        assert access.instructions == ADDRESS * access.requests
        assert access.turned == 0


@pytest.mark.parametrize(("step", "sectors"), [(2, 2), (4, 4), (8, 8), (16, 8)])
def test_every_other_column_moves_whole_sectors(step: int, sectors: int) -> None:
    """A sector has 8 elements, of which one or more are used; each takes a request."""
    found = inner(lambda x, dy: pair(x[:, ::step], dy), ((ROWS, step * COLS), f32), FULL)["in0"]
    assert found.touched == 4 * N
    assert found.dram == found.l2 == sectors * 4 * N
    assert found.requests == N


def test_across_memory_a_row_moves_sectors_and_a_square_does_not() -> None:
    """Device memory moves each sector once, but each row of a transposed tensor moves all of them from L2."""

    def transposed(x: Any, dy: Any) -> Any:
        return pair(x.t(), dy)

    specs = ((COLS, ROWS), f32), FULL
    row, square = (inner(transposed, *specs, tile=tile)["in0"] for tile in (A_ROW, A_SQUARE))
    assert (row.dram, row.l2) == (4 * N, 8 * 4 * N)
    assert (square.dram, square.l2) == (4 * N, 4 * N)


@pytest.mark.parametrize("tile", [A_ROW, A_SQUARE])
def test_vectors_move_their_bytes_and_a_number_a_sector(tile: tuple[int, int]) -> None:
    """What several tiles read of them comes from L1."""

    def scaled(x: Any, dy: Any, of_rows: Any, of_cols: Any, number: Any) -> Any:
        return pair(x * of_rows * of_cols * number, dy)

    found = inner(scaled, FULL, FULL, ((ROWS, 1), f32), ((COLS,), f32), ((), f32), tile=tile)
    moved = {(a.touched, a.dram, a.l2, a.requests) for a in found.values()}
    assert (4 * ROWS, 4 * ROWS, 4 * ROWS, ROWS / 4) in moved
    assert (4 * COLS, 4 * COLS, 4 * COLS, COLS / 4) in moved
    assert (4, SECTOR, SECTOR, 1) in moved


def test_accesses_that_start_anywhere_are_narrow() -> None:
    """Rows of 257 columns start at any multiple of 4 bytes, unless a program shifts them."""
    odd = ((ROWS, COLS + 1), f32)
    assert {a.requests for a in inner(pair, odd, odd).values()} == {ROWS * (COLS + 1)}
    program = lower(only(traced(pair, odd, odd)))
    nest = program.nests[0]
    shifted = accesses(program, nest, nest.statements, A_ROW, shifted=True)
    assert {a.requests for a in shifted} == {ROWS * (COLS + 1) / 4}


def test_instructions_are_those_of_each_element() -> None:
    """An exponential of a row's value takes its instructions for each row, those of each element for each; a
    reduction takes one for each element."""

    def function(x: Any, dy: Any, of_rows: Any) -> Any:
        return pair(x * of_rows.exp(), dy.tanh())

    program = lower(only(traced(function, FULL, FULL, ((ROWS, 1), f32))))
    nest = program.nests[0]
    found = computing(program, nest, nest.statements)
    # Once per element: two products, the sum's addition, a product and a difference.
    assert found == Work(0, 0, (5 + PRICES["tanh"]) * N + PRICES["exp"] * ROWS)
