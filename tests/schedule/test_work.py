"""The work of a kernel: sectors, requests and instructions of small loops, counted by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from graphs import bf16, f32, merged, only, pair, traced

from mixorder.ir.program import AxisClass
from mixorder.lowering.lower import lower
from mixorder.schedule.facts import PRICES
from mixorder.schedule.work import (
    ADDRESS,
    DIVISION,
    SECTOR,
    Access,
    Work,
    accesses,
    computing,
    total,
)
from mixorder.transform.column_blocks import in_blocks

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


@pytest.mark.parametrize(("rows", "bytes_of_line"), [(1, 4), (8, 32), (32, 128)])
def test_a_tile_touches_lines_that_it_does_not_fill(rows: int, bytes_of_line: int) -> None:
    """Of a transposed tensor, a line for each column, and as many of its bytes as the tile has rows for."""
    specs = ((COLS, ROWS), f32), FULL
    found = inner(lambda x, dy: pair(x.t(), dy), *specs, tile=(rows, COLS))
    beyond = 4 * N / bytes_of_line - 4 * N / 128
    assert found["in0"].lines == pytest.approx(beyond)
    assert found["in1"].lines == 0 == total([found["in1"]]).lines
    assert total(found.values()).lines == pytest.approx(beyond + found["out0"].lines)


@pytest.mark.parametrize(("channels", "sectors"), [(64, 1), (4, 2)])
def test_channels_beside_a_slice_share_sectors(channels: int, sectors: int) -> None:
    """Channels are the last dim in memory, of which a slice is read; a program has one of them."""

    def gated(x: Any, dy: Any) -> Any:
        product = x[:, :, :channels].transpose(1, 2) * dy
        return product.sum(-1), product.sum((0, 2))

    program = lower(only(traced(gated, ((64, 49, 80), f32), ((64, channels, 49), f32))))
    nest = program.nests[0]
    alone = {a.buffer: a for a in accesses(program, nest, nest.statements, (8, 49))}["in0"]
    elements = 64 * channels * 49
    assert program.axis(AxisClass.BATCH) is not None
    assert alone.touched == 4 * elements
    assert (alone.dram, alone.l2) == (sectors * 4 * elements, 8 * 4 * elements)


def test_what_lies_along_the_rows_is_turned() -> None:
    """A transposed tensor, and numbers of each row and head; not a vector of rows or of columns."""
    specs = ((COLS, ROWS), f32), FULL
    found = inner(lambda x, dy: pair(x.t(), dy), *specs)
    assert (found["in0"].turned, found["in1"].turned) == (N, 0)

    def of_heads(x: Any, dy: Any, head: Any) -> Any:
        return pair((x.view(ROWS, 4, 64) * head.t()[:, :, None]).view(ROWS, COLS), dy)

    found = inner(of_heads, FULL, FULL, ((4, ROWS), f32))
    assert sorted(a.turned for a in found.values()) == [0, 0, 0, N]
    vectors = inner(lambda x, dy, r, c: pair(x * r * c, dy), FULL, FULL, ((ROWS, 1), f32), ((COLS,), f32))
    assert {a.turned for a in vectors.values()} == {0}


@pytest.mark.parametrize(("boundary", "each"), [(100, 4), (99, 1)])
def test_a_piece_is_asked_for_everywhere(boundary: int, each: int) -> None:
    """Each piece of a concatenation is read where it stands, by a load that is in the way elsewhere too: in
    whole accesses where the piece begins at one."""

    def pieces(a: Any, b: Any, dy: Any) -> Any:
        return pair(torch.cat([a, b], 1), dy)

    found = inner(pieces, ((ROWS, boundary), f32), ((ROWS, COLS - boundary), f32), FULL)
    first, second = sorted((a for a in found.values() if a.touched < 4 * N), key=lambda a: a.touched)
    assert (first.touched, second.touched) == (4 * ROWS * boundary, 4 * ROWS * (COLS - boundary))
    assert second.requests == N / each
    assert second.instructions == ADDRESS * N / each


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


def test_a_division_of_an_index_costs_instructions_once_for_each_request() -> None:
    """One table of 8 rows for 8 samples: its row is the remainder of a division."""

    def with_table(x: Any, dy: Any, table: Any) -> Any:
        return pair((x.view(8, 8, COLS) * table).view(ROWS, COLS), dy)

    found = inner(with_table, FULL, FULL, ((8, COLS), f32))
    (table,) = (a for a in found.values() if a.touched == 4 * 8 * COLS)
    assert (table.dram, table.l2) == (4 * 8 * COLS, 4 * N)  # L2 serves it for each sample
    assert table.requests == N / 4
    assert table.instructions == (ADDRESS + DIVISION) * table.requests


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


def test_blocks_of_columns_compute_and_ask_again_for_what_they_share() -> None:
    """A table of the heads' width, for rows that are divided into blocks of several heads each: each block's
    program loads it and takes its sines."""

    def function(dy: Any, table: Any) -> Any:
        product = dy.view(ROWS, 16, COLS) * table.sin()
        return product, product.view(ROWS, 16 * COLS).sum(0)

    def found(width: int) -> tuple[Work, float]:
        whole = merged(only(traced(function, ((ROWS, 16 * COLS), f32), ((ROWS, 1, COLS), f32))))
        program = in_blocks(whole, width) if width < 16 * COLS else whole
        nest = program.nests[0]
        reads = accesses(program, nest, nest.body, (1, width))
        (table,) = (a for a in reads if a.touched == 4 * ROWS * COLS)
        return computing(program, nest, nest.body), table.requests

    assert found(4 * COLS) == found(16 * COLS)
    assert found(4 * COLS)[1] == 16 * ROWS * COLS / 4


def test_integers_of_64_bits_take_two_instructions() -> None:
    def function(x: Any, dy: Any, label: Any) -> Any:
        return pair(torch.where(torch.arange(COLS) == label, x, 0.0), dy)

    def instructions(dtype: torch.dtype) -> float:
        program = lower(only(traced(function, FULL, FULL, ((ROWS, 1), dtype))))
        nest = program.nests[0]
        return computing(program, nest, nest.statements).instructions

    # torch.arange is of 64 bits; a narrower label is widened, for each row.
    assert instructions(torch.int64) >= 7 * N
    program = lower(only(traced(function, FULL, FULL, ((ROWS, 1), torch.int64))))
    compared = next(s for s in program.nests[0].statements if getattr(s, "op", "") == "eq")
    (one,) = [computing(program, program.nests[0], [compared])]
    assert one == Work(0, 0, 2 * N)


def test_a_tensor_is_moved_once_from_device_memory() -> None:
    """A tensor of which a loop reads whole rows and every other column."""
    reads = [
        Access("in0", 100, 100, 100, 10, 1),
        Access("in0", 50, 200, 200, 20),
        Access("in1", 8, 32, 32, 1),
    ]
    assert total(reads) == Work(200 + 32, 100 + 200 + 32, 1, 31)


def test_idle_lanes_compute_and_ask_but_move_nothing() -> None:
    work = Work(100, 200, 30, 50)
    assert work.scaled(1.5) == Work(100, 200, 45, 75)
    assert work.idle() == Work(100, 200, 0, 50)
    assert work + Work(1, 2, 3, 4) == Work(101, 202, 33, 54)
