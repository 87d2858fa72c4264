"""The verifier finds each broken rule, one at a time, in programs that are legal otherwise."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import graphs
import pytest
import sympy
from graphs import f32, only, share, within_tile

from mixorder.ir.program import (
    Axis,
    AxisClass,
    Buffer,
    BufferRole,
    Carry,
    Compute,
    Exchange,
    Load,
    LoopProgram,
    Nest,
    Reduce,
    Ref,
    Store,
)
from mixorder.ir.reductions import SUM
from mixorder.ir.verify import Form, verify
from mixorder.lowering.lower import lower
from mixorder.lowering.tile import lower_tile
from mixorder.transform.reorder import merge, reorder
from mixorder.transform.split import split_outer


@pytest.fixture(scope="module")
def programs() -> dict[Form, LoopProgram]:
    lowered = lower(only(graphs.layer_norm_backward(512, 256)))
    split = split_outer(lowered)
    reordered = reorder(split)
    return {
        Form.LOWERED: lowered,
        Form.SPLIT: split,
        Form.REORDERED: reordered,
        Form.MERGED: merge(reordered),
        Form.COOPERATIVE: share(merge(reordered), 2, 2),
        Form.BLOCKED: lower_tile(within_tile(graphs.block_scales(256, 512))),
    }


Programs = dict[Form, LoopProgram]
Change = Callable[[Nest], Nest]


def changed(program: LoopProgram, at: int, change: Change) -> LoopProgram:
    nests = list(program.nests)
    nests[at] = change(nests[at])
    return dataclasses.replace(program, nests=tuple(nests))


def appended(*statements: object) -> Change:
    return lambda nest: dataclasses.replace(nest, body=(*nest.body, *statements))


@pytest.mark.parametrize("stage", Form)
def test_each_stage_gives_a_legal_program(stage: Form, programs: Programs) -> None:
    assert verify(programs[stage], stage) is programs[stage]


@pytest.mark.parametrize("stage", Form)
def test_a_program_of_an_earlier_stage_is_refused(stage: Form, programs: Programs) -> None:
    order = list(Form)
    for earlier in order[: order.index(stage)]:
        with pytest.raises(ValueError):
            verify(programs[earlier], stage)


def test_a_workspace_before_the_split(programs: Programs) -> None:
    workspace = Buffer("ws0", BufferRole.WORKSPACE, f32, (sympy.S(1),), (sympy.S(1),))
    program = programs[Form.LOWERED]
    program = dataclasses.replace(program, buffers=(*program.buffers, workspace))
    with pytest.raises(ValueError, match="a workspace before the split"):
        verify(program, Form.LOWERED)


def test_a_load_under_a_condition_that_is_no_bool(programs: Programs) -> None:
    program = programs[Form.LOWERED]
    first = next(s for s in program.nests[0].body if isinstance(s, Load))
    guarded = dataclasses.replace(first, name="guarded", predicate=Ref(first.name))
    with pytest.raises(ValueError, match="no bool"):
        verify(changed(program, 0, appended(guarded)), Form.LOWERED)


def test_a_condition_that_is_not_there(programs: Programs) -> None:
    program = programs[Form.LOWERED]
    first = next(s for s in program.nests[0].body if isinstance(s, Load))
    guarded = dataclasses.replace(first, name="guarded", predicate=Ref("nothing"))
    with pytest.raises(ValueError, match="before its definition"):
        verify(changed(program, 0, appended(guarded)), Form.LOWERED)


def test_a_number_of_a_loop_that_is_not_there(programs: Programs) -> None:
    stray = Compute("stray", "index_expr", (sympy.Symbol("z"), f32), (), f32)
    with pytest.raises(ValueError, match="leaves the nest"):
        verify(changed(programs[Form.LOWERED], 0, appended(stray)), Form.LOWERED)


def test_a_use_before_the_definition(programs: Programs) -> None:
    program = changed(
        programs[Form.LOWERED],
        0,
        lambda nest: dataclasses.replace(nest, body=tuple(reversed(nest.body))),
    )
    with pytest.raises(ValueError, match="before its definition"):
        verify(program, Form.LOWERED)


def test_a_name_defined_twice(programs: Programs) -> None:
    program = programs[Form.LOWERED]
    first = program.nests[0].body[0]
    with pytest.raises(ValueError, match="defined twice"):
        verify(changed(program, 0, appended(first)), Form.LOWERED)


def test_an_index_outside_the_loops(programs: Programs) -> None:
    stray = Load("stray", "in0", sympy.Symbol("elsewhere"), f32)
    with pytest.raises(ValueError, match="leaves the nest's loops"):
        verify(changed(programs[Form.LOWERED], 0, appended(stray)), Form.LOWERED)


def test_a_reduction_of_a_loop_that_is_not_there(programs: Programs) -> None:
    program = programs[Form.LOWERED]
    value = Ref(program.nests[0].body[0].name)  # type: ignore[union-attr]
    stray = Reduce("stray", SUM, value, (sympy.Symbol("elsewhere"),), f32, f32)
    with pytest.raises(ValueError, match="a loop that is not there"):
        verify(changed(program, 0, appended(stray)), Form.LOWERED)


def test_an_output_stored_twice(programs: Programs) -> None:
    program = programs[Form.LOWERED]
    store = next(s for s in program.nests[0].body if isinstance(s, Store))
    with pytest.raises(ValueError, match="are stored as"):
        verify(changed(program, 0, appended(store)), Form.LOWERED)


def test_an_output_that_is_never_stored(programs: Programs) -> None:
    program = changed(
        programs[Form.LOWERED],
        0,
        lambda nest: dataclasses.replace(nest, body=tuple(s for s in nest.body if not isinstance(s, Store))),
    )
    with pytest.raises(ValueError, match="are stored as"):
        verify(program, Form.LOWERED)


def test_an_outer_reduction_after_the_split(programs: Programs) -> None:
    program = programs[Form.SPLIT]
    row = program.axis(AxisClass.ROW)
    assert row is not None
    value = Ref(program.nests[0].body[0].name)  # type: ignore[union-attr]
    stray = Reduce("stray", SUM, value, (row.symbol,), f32, f32)
    with pytest.raises(ValueError, match="is an outer reduction"):
        verify(changed(program, 0, appended(stray)), Form.SPLIT)


def test_columns_around_rows_after_reordering(programs: Programs) -> None:
    def flip(nest: Nest) -> Nest:
        return dataclasses.replace(nest, loops=tuple(reversed(nest.loops)))

    with pytest.raises(ValueError, match="columns enclose rows"):
        verify(changed(programs[Form.REORDERED], 0, flip), Form.REORDERED)


def test_a_hoisted_statement_that_depends_on_rows(programs: Programs) -> None:
    def hoist_all(nest: Nest) -> Nest:
        loads = tuple(s for s in nest.body if isinstance(s, Load))
        rest = tuple(s for s in nest.body if not isinstance(s, Load))
        return dataclasses.replace(nest, preamble=(*nest.preamble, *loads), body=rest)

    with pytest.raises(ValueError, match="is hoisted but depends on rows"):
        verify(changed(programs[Form.MERGED], 0, hoist_all), Form.MERGED)


def replaced(old: type, **changes: object) -> Change:
    """Change every statement of a class."""

    def change(nest: Nest) -> Nest:
        body = tuple(dataclasses.replace(s, **changes) if isinstance(s, old) else s for s in nest.body)
        return dataclasses.replace(nest, body=body)

    return change


def uncarried(nest: Nest) -> Nest:
    """What was carried is used as it is, by the tile that is one stage further."""
    body = tuple(
        Compute(s.name, "identity", (s.value,), (), s.dtype) if isinstance(s, Carry) else s for s in nest.body
    )
    return dataclasses.replace(nest, body=body)


def unexchanged(nest: Nest) -> Nest:
    return dataclasses.replace(nest, body=tuple(s for s in nest.body if not isinstance(s, Exchange)))


def exchanged_late(nest: Nest) -> Nest:
    """The exchange comes behind what uses the totals."""
    (exchange,) = (s for s in nest.body if isinstance(s, Exchange))
    return dataclasses.replace(nest, body=(*unexchanged(nest).body, exchange))


def half_exchanged(nest: Nest) -> Nest:
    return replaced(Exchange, values=next(s for s in nest.body if isinstance(s, Exchange)).values[:1])(nest)


@pytest.mark.parametrize(
    "change",
    [replaced(Carry, phases=2), replaced(Carry, phases=0), uncarried, unexchanged, exchanged_late]
    + [half_exchanged],
    ids=["carried too far", "carried nowhere", "uncarried", "unexchanged", "exchanged late", "in part"],
)
def test_a_value_of_another_stage(change: Change, programs: Programs) -> None:
    broken = changed(programs[Form.COOPERATIVE], 0, change)
    with pytest.raises(ValueError, match="is in phase"):
        verify(broken, Form.COOPERATIVE)


def test_an_exchange_through_an_unknown_buffer(programs: Programs) -> None:
    broken = changed(programs[Form.COOPERATIVE], 0, replaced(Exchange, buffer="nowhere"))
    with pytest.raises((ValueError, StopIteration)):
        verify(broken, Form.COOPERATIVE)


def test_an_unknown_buffer(programs: Programs) -> None:
    stray = Load("stray", "nowhere", sympy.S.Zero, f32)
    with pytest.raises((ValueError, StopIteration)):
        verify(changed(programs[Form.LOWERED], 0, appended(stray)), Form.LOWERED)


def test_two_axes_of_one_class() -> None:
    loops = tuple(Axis(sympy.Symbol(name), sympy.Integer(4), AxisClass.ROW) for name in ("x0", "x1"))
    with pytest.raises(ValueError, match="2 row axes"):
        LoopProgram((), (Nest(loops, ()),)).axis(AxisClass.ROW)


def test_a_program_prints_its_nests_as_loops(programs: Programs) -> None:
    text = str(programs[Form.MERGED])
    assert text.count("for x in row(512):") == 1
    assert "once: " in text and "partial_accumulate ws0[" in text


def test_values_know_what_they_depend_on() -> None:
    x, y = (sympy.Symbol(n) for n in "xy")
    loops = (
        Axis(x, sympy.Integer(2), AxisClass.ROW),
        Axis(y, sympy.Integer(3), AxisClass.COLUMN),
    )
    body = (
        Load("a", "in0", 3 * x + y, f32),
        Reduce("r", SUM, Ref("a"), (y,), f32, f32),
        Compute("b", "mul", (Ref("a"), Ref("r")), (), f32),
        Compute("c", "constant", (1.0, f32), (), f32),
    )
    nest = Nest(loops, body)
    assert nest.dependence() == {
        "a": {x, y}, "r": {x}, "b": {x, y}, "c": frozenset(),
    }  # fmt: skip
    assert nest.reductions_above() == {"a": 0, "r": 0, "b": 1, "c": 0}
