"""Workspaces in halves: each column has one place, and each store a line of its own without gaps."""

import graphs
import pytest
import sympy
from graphs import bf16, f16, f32, f64, share
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mixorder.codegen.writer import TileDim, Writer
from mixorder.ir.program import AlignmentPhase, BufferRole, Load, PartialAccumulate
from mixorder.lowering.lower import lower
from mixorder.transform.interleave import GROUP, STORED, InHalves, beside, column_at, spelled
from mixorder.transform.reorder import merge, reorder
from mixorder.transform.reread import reread
from mixorder.transform.split import split_outer

Y = sympy.Symbol("y", integer=True, nonnegative=True)
X = TileDim(sympy.Symbol("x", integer=True, nonnegative=True), "4096", "XBLOCK", False)
Y_DIM = TileDim(Y, "768", "R0_BLOCK", True)


def merged(graph):
    return merge(reorder(split_outer(lower(graphs.only(graph)))))


def partials(program):
    return [s for nest in program.nests for s in nest.body if isinstance(s, PartialAccumulate)]


def values(index, columns):
    """An index at each column, by Python's operators: sympy's own substitution takes seconds."""
    functions = {"FloorDiv": lambda a, b: a // b, "ModularIndexing": lambda a, b, m: a // b % m}
    function = sympy.lambdify(Y, index, [functions, "math"])
    return [function(i) for i in range(columns)]


@given(st.integers(1, 40))
@example(1)
@example(40)
@settings(max_examples=20, deadline=None, derandomize=True)
def test_every_column_has_a_place_of_its_own(groups):
    columns = GROUP * groups
    at = values(spelled(InHalves(Y, columns)), columns)
    assert sorted(at) == list(range(columns))
    assert [at[i] for i in values(column_at(Y, columns), columns)] == list(range(columns))
    # What threads of eight columns store is without gaps.
    for half in range(GROUP // STORED):
        stored = [at[GROUP * g + STORED * half + i] for g in range(groups) for i in range(STORED)]
        assert stored == list(range(half * columns // 2, (half + 1) * columns // 2))


def test_what_is_beside_a_place():
    s, k = sympy.symbols("s k", integer=True)
    assert beside(InHalves(Y, 64) + 64 * s + 7 * k) == 64 * s + 7 * k
    assert beside(Y + 64 * s) is None and spelled(Y + 64 * s) == Y + 64 * s


@pytest.mark.parametrize(
    ("dtype", "cols", "halves"),
    [
        (bf16, 768, True),
        (f16, 64, True),
        (bf16, 8, True),
        (f32, 768, False),
        (bf16, 100, False),
        (f64, 64, False),
    ],
)
def test_which_workspaces_are_in_halves(dtype, cols, halves):
    """Where tiles are loaded 8 elements at a time, in fp32 4."""
    program = merged(graphs.rms_norm_backward(64, cols, dtype))
    (partial,) = partials(program)
    assert (beside(partial.index) is not None) == halves


def test_the_finalisation_reads_where_the_main_kernel_stores():
    program = merged(graphs.layer_norm_backward(64, 128))
    stored = {s.buffer: s.index for s in partials(program)}
    loads = [s for s in program.nests[1].body if isinstance(s, Load)]
    read = {s.buffer: s.index for s in loads if program.buffer(s.buffer).role is BufferRole.WORKSPACE}
    assert read == stored and len(read) == 2


def test_mixed_inputs_go_by_the_narrowest():
    def function(dy, x, w):
        dx, dw = graphs.pair(x, dy.to(f32) * w)
        return dx, dw

    program = merged(graphs.traced(function, ((64, 128), bf16), ((64, 128), f32), ((128,), f32)))
    (partial,) = partials(program)
    assert beside(partial.index) is not None


def test_rows_that_are_shared_or_read_twice_have_columns_in_their_order():
    program = merged(graphs.rms_norm_backward(4096, 16384))
    for wide in (share(program, 8, 2), reread(program)):
        assert all(beside(s.index) is None for s in partials(wide))
        loads = [s for s in wide.nests[1].body if isinstance(s, Load)]
        assert loads and all(beside(s.index) is None for s in loads)
    assert all(beside(s.index) is not None for s in partials(program))


def test_rows_that_are_shifted_are_stored_as_they_lie():
    """At the places that the finalisation reads, but with gaps: threads hold other columns there."""
    program = merged(graphs.rms_norm_backward(4096, 768))
    (_, schedule, sources) = graphs.kernels(graphs.only(graphs.rms_norm_backward(4096, 768)))
    assert "tl.split" in sources[0].text and "place" in sources[1].text and schedule.parts == 1
    writer = Writer(program, program.nests[0], (X, Y_DIM), 4)
    writer.phase = AlignmentPhase(768, 8)
    (partial,) = partials(program)
    writer.store_total(partial, "value")
    assert "tl.split" not in writer.code.getvalue() and "(y % 4)" in writer.code.getvalue()
