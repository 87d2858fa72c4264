"""The verifier finds each broken rule, one at a time, in programs that are legal otherwise."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import graphs
import pytest
import sympy
from graphs import f32, only, share, within_tile

from mixorder.inductor.symbols import FloorDiv, ModularIndexing
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
from mixorder.ir.verify import Form, check_stores, verify
from mixorder.lowering.lower import lower
from mixorder.lowering.tile import lower_tile
from mixorder.transform.finished import finished
from mixorder.transform.reduction_groups import two_pass
from mixorder.transform.reorder import reorder
from mixorder.transform.split import split_outer
from mixorder.transform.whole_groups import within_a_tile


@pytest.fixture(scope="module")
def programs() -> dict[Form, LoopProgram]:
    lowered = lower(only(graphs.layer_norm_backward(512, 256)))
    merged = reorder(split_outer(lowered))
    over_reduction_groups = lower_tile(within_tile(graphs.batch_norm_backward(4096, 64)))
    return {
        Form.LOWERED: lowered,
        Form.MERGED: merged,
        Form.COOPERATIVE: share(merged, 2, 2),
        Form.TWO_PASS: two_pass(over_reduction_groups),
        Form.TILE_LOCAL: lower_tile(within_tile(graphs.block_scales(256, 512))),
        Form.WHOLE_GROUPS: within_a_tile(over_reduction_groups),
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


def replaced(old: type, **changes: object) -> Change:
    """Change every statement of a class."""

    def change(nest: Nest) -> Nest:
        body = tuple(dataclasses.replace(s, **changes) if isinstance(s, old) else s for s in nest.body)
        return dataclasses.replace(nest, body=body)

    return change


def body_of(change: Callable[[tuple[Any, ...]], Iterable[Any]]) -> Change:
    return lambda nest: dataclasses.replace(nest, body=tuple(change(nest.body)))


def first(nest: Nest, kind: type = Load) -> Any:
    return next(s for s in nest.body if isinstance(s, kind))


def guarded_by(predicate: str) -> Change:
    """A load, once more under a condition; without a name, under its own value."""

    def change(nest: Nest) -> Nest:
        load = first(nest)
        ref = Ref(predicate or load.name)
        return appended(dataclasses.replace(load, name="guarded", predicate=ref))(nest)

    return change


def reduced_over(symbol: str) -> Change:
    over = sympy.Symbol(symbol, integer=True, nonnegative=True)
    return lambda nest: appended(Reduce("stray", SUM, Ref(nest.body[0].name), (over,), f32, f32))(nest)  # type: ignore


def hoisted_loads(nest: Nest) -> Nest:
    loads = tuple(s for s in nest.body if isinstance(s, Load))
    rest = tuple(s for s in nest.body if not isinstance(s, Load))
    return dataclasses.replace(nest, preamble=(*nest.preamble, *loads), body=rest)


def uncarried(nest: Nest) -> Nest:
    """What was carried is used as it is, by the tile that is one stage further."""
    body = tuple(
        Compute(s.name, "identity", (s.value,), (), s.dtype) if isinstance(s, Carry) else s for s in nest.body
    )
    return dataclasses.replace(nest, body=body)


ELSEWHERE = sympy.Symbol("elsewhere")
NUMBER = Compute("stray", "index_expr", (ELSEWHERE, f32), (), f32)
LOWERED, SHARED = Form.LOWERED, Form.COOPERATIVE
BROKEN: dict[str, tuple[Form, Change, str]] = {
    "a condition that is no bool": (LOWERED, guarded_by(""), "no bool"),
    "a condition that is not there": (LOWERED, guarded_by("nothing"), "before its definition"),
    "a number of another loop": (LOWERED, appended(NUMBER), "leaves the nest"),
    "a use before the definition": (LOWERED, body_of(reversed), "before its definition"),
    "a name defined twice": (LOWERED, body_of(lambda body: (*body, body[0])), "defined twice"),
    "an index outside the loops": (
        LOWERED, appended(Load("stray", "in0", ELSEWHERE, f32)), "leaves the nest's loops"
    ),
    "a reduction of another loop": (LOWERED, reduced_over("elsewhere"), "a loop that is not there"),
    "an output stored twice": (LOWERED, lambda nest: appended(first(nest, Store))(nest), "are stored as"),
    "an output never stored": (
        LOWERED, body_of(lambda body: (s for s in body if not isinstance(s, Store))), "are stored as"
    ),
    "an outer reduction after the split": (Form.MERGED, reduced_over("x"), "is an outer reduction"),
    "columns around rows": (
        Form.MERGED,
        lambda nest: dataclasses.replace(nest, loops=nest.loops[::-1]),
        "columns enclose rows",
    ),
    "what depends on rows before their loop": (Form.MERGED, hoisted_loads, "is hoisted but depends on rows"),
    "uncarried": (SHARED, uncarried, "is in phase"),
    "unexchanged": (
        SHARED, body_of(lambda body: (s for s in body if not isinstance(s, Exchange))), "is in phase"
    ),
    "exchanged behind what uses the totals": (
        SHARED, body_of(lambda body: sorted(body, key=lambda s: isinstance(s, Exchange))), "is in phase"
    ),
    "exchanged in part": (
        SHARED,
        lambda nest: replaced(Exchange, values=first(nest, Exchange).values[:1])(nest),
        "is in phase",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_rule(what: str, programs: Programs) -> None:
    form, change, message = BROKEN[what]
    with pytest.raises(ValueError, match=message):
        verify(changed(programs[form], 0, change), form)


@pytest.mark.parametrize("stage", Form)
def test_stores_cover_their_outputs(stage: Form, programs: Programs) -> None:
    check_stores(programs[stage])


def elsewhere(at: Callable[[sympy.Expr], sympy.Expr]) -> Change:
    """Stores at another place."""

    def change(nest: Nest) -> Nest:
        body = (dataclasses.replace(s, index=at(s.index)) if isinstance(s, Store) else s for s in nest.body)
        return dataclasses.replace(nest, body=tuple(body))

    return change


ROW = sympy.Symbol("x", integer=True, nonnegative=True)
UNCOVERED: dict[str, Callable[[sympy.Expr], sympy.Expr]] = {
    "one row": lambda index: index.xreplace({ROW: sympy.S.Zero}),
    "the diagonal": lambda index: index + ROW,
    "every second element": lambda index: 2 * index,
    "not the first element": lambda index: index + 1,
    "half of the rows twice": lambda index: index.xreplace({ROW: FloorDiv(ROW, 2)}),
    "rows, modulo some": lambda index: index.xreplace({ROW: ModularIndexing(ROW, 1, 16)}),
    "squares": lambda index: index.xreplace({ROW: ROW**2}),
}


@pytest.mark.parametrize("what", UNCOVERED)
def test_stores_that_leave_elements_out_or_write_some_twice(what: str, programs: Programs) -> None:
    program = changed(programs[Form.LOWERED], 0, elsewhere(UNCOVERED[what]))
    with pytest.raises(ValueError, match="does not cover|is repeated"):
        check_stores(program)


def test_stores_of_digits_of_a_loop(programs: Programs) -> None:
    """Rows that are two dims in memory: their digits cover what the loop does, in either order."""
    high, low = FloorDiv(ROW, 8), ModularIndexing(ROW, 1, 8)
    program = programs[Form.LOWERED]
    check_stores(changed(program, 0, elsewhere(lambda index: index.xreplace({ROW: 8 * high + low}))))
    check_stores(changed(program, 0, elsewhere(lambda index: index.xreplace({ROW: 64 * low + high}))))


def test_stores_of_digits_of_all_elements(programs: Programs) -> None:
    """As of a view with other dims: some digits are of one loop alone, and others of both together."""
    program = programs[Form.LOWERED]

    def at(inner: int, by: int) -> Change:
        def digits(index: sympy.Expr) -> sympy.Expr:
            row = index.coeff(ROW)
            low, middle = (
                ModularIndexing(index - row * ROW, 1, inner),
                ModularIndexing(index, by, 16 * row // by),
            )
            return low + inner * middle + 16 * row * FloorDiv(ROW, 16)

        return elsewhere(digits)

    check_stores(changed(program, 0, at(8, 8)))
    for wrong in (at(4, 8), at(8, 4)):
        with pytest.raises(ValueError, match="does not cover"):
            check_stores(changed(program, 0, wrong))


def test_a_workspace_before_the_split(programs: Programs) -> None:
    workspace = Buffer("ws0", BufferRole.WORKSPACE, f32, (sympy.S(1),), (sympy.S(1),))
    program = programs[LOWERED]
    program = dataclasses.replace(program, buffers=(*program.buffers, workspace))
    with pytest.raises(ValueError, match="a workspace before the split"):
        verify(program, LOWERED)


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
    assert "exchange %sum_1, %sum_2 through mailbox" in str(programs[Form.COOPERATIVE])
    assert "after: %sum_3.partial: f32 = load ws0[" in str(finished(programs[Form.MERGED]))


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
