"""Bounds of index expressions, and what is known of symbolic sizes."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
import sympy
import torch
from torch._dynamo.source import ConstantSource
from torch.fx.experimental.symbolic_shapes import DimDynamic as Dim
from torch.fx.experimental.symbolic_shapes import ShapeEnv, StatelessSymbolicContext

from mixorder.errors import Decline
from mixorder.inductor import lowerings
from mixorder.inductor.symbols import (
    INDEX_FUNCTIONS,
    FloorDiv,
    Mod,
    ModularIndexing,
    _without_outer_remainders,
    are_equal,
    bounds,
    canonical,
    depends_on_data,
    guarded,
    hint_of,
    simplified,
)
from mixorder.inductor.tensors import FakeTensorMode

X = sympy.Symbol("x", integer=True, nonnegative=True)
SIZES = {X: sympy.Integer(100)}


@pytest.mark.parametrize(
    ("expr", "expected"),
    [
        (X, (0, 99)),
        (3 * X - 7, (-7, 290)),
        (FloorDiv(X, 8), (0, 12)),
        (ModularIndexing(X, 1, 8), (0, 7)),
        (sympy.Integer(5), (5, 5)),
    ],
)
def test_bounds_are_of_all_values_of_the_loops(expr: Any, expected: tuple[int, int]) -> None:
    assert bounds(expr, SIZES) == expected


@pytest.fixture
def rows() -> torch.Tensor:
    """A fake tensor of `s0` rows, 48 of them when it was traced."""
    mode = FakeTensorMode(shape_env=ShapeEnv())
    context = StatelessSymbolicContext([Dim.DYNAMIC, Dim.STATIC])
    return mode.from_tensor(torch.empty(48, 8), symbolic_context=context)


def test_a_size_has_the_value_that_it_was_traced_with(rows: torch.Tensor) -> None:
    (symbol,) = rows.shape[0].node.expr.free_symbols  # type: ignore[attr-defined]
    assert not depends_on_data(symbol)
    with lowerings.context(rows):
        assert hint_of(symbol) == 48
        assert simplified(FloorDiv(X, 100), SIZES) == 0


@pytest.mark.parametrize(
    ("expr", "simpler"),
    [
        (ModularIndexing(ModularIndexing(X, 1, 42), 1, 7), ModularIndexing(X, 1, 7)),
        (ModularIndexing(ModularIndexing(X, 1, 42), 3, 7), ModularIndexing(X, 3, 7)),
        (ModularIndexing(ModularIndexing(X, 2, 42), 3, 7), ModularIndexing(X, 6, 7)),
        (ModularIndexing(ModularIndexing(X, 1, 10), 1, 7), ModularIndexing(ModularIndexing(X, 1, 10), 1, 7)),
        (5 * ModularIndexing(ModularIndexing(X, 1, 42), 1, 7) + X, 5 * ModularIndexing(X, 1, 7) + X),
        (FloorDiv(ModularIndexing(X, 1, 42), 7), ModularIndexing(X, 7, 6)),
        (FloorDiv(ModularIndexing(X, 2, 42), 3), ModularIndexing(X, 6, 14)),
        (FloorDiv(ModularIndexing(X, 1, 10), 7), FloorDiv(ModularIndexing(X, 1, 10), 7)),
        (
            ModularIndexing(ModularIndexing(X, 2, 42) - 7, 3, 2),
            ModularIndexing(ModularIndexing(X, 2, 42) - 7, 3, 2),
        ),
    ],
)
def test_a_remainder_of_a_remainder_and_a_quotient_of_one(
    rows: torch.Tensor, expr: Any, simpler: Any
) -> None:
    with lowerings.context(rows):
        assert simplified(expr, SIZES) == simpler
    for x in range(100):
        assert numeric(expr, x) == numeric(simpler, x)


def test_a_quotient_of_a_remainder_needs_no_help_of_torch() -> None:
    """torch 2.11 leaves it; torch 2.13 has it in the same form by itself."""
    assert _without_outer_remainders(FloorDiv(ModularIndexing(X, 1, 42), 7)) == ModularIndexing(X, 7, 6)
    left = FloorDiv(ModularIndexing(X, 1, 10), 7)
    assert _without_outer_remainders(left) == left


def numeric(expr: Any, x: int) -> int:
    if not expr.args:
        return int(expr.subs(X, x))
    parts = [numeric(part, x) for part in expr.args]
    if isinstance(expr, ModularIndexing):
        return INDEX_FUNCTIONS["ModularIndexing"](*parts)
    return int(expr.func(*parts))


def test_a_size_that_comes_from_data_is_known() -> None:
    (symbol,) = ShapeEnv().create_unbacked_symint().node.expr.free_symbols
    assert depends_on_data(symbol)


@pytest.mark.parametrize(
    ("other", "size", "equal"),
    [
        (ModularIndexing(ModularIndexing(X, 1, 128), 16, 8), 512, True),
        (ModularIndexing(ModularIndexing(X, 1, 128), 16, 8), 2**23, False),  # too many points to try
        (ModularIndexing(ModularIndexing(X, 1, 128), 16, 8), sympy.Symbol("n"), False),
        (ModularIndexing(ModularIndexing(X, 1, 120), 16, 8), 120, True),
        (ModularIndexing(ModularIndexing(X, 1, 120), 16, 8), 121, False),  # at a single point
        (ModularIndexing(X, 16, 8), sympy.Symbol("n"), True),
    ],
)
def test_indices_are_equal_at_all_points_or_not(other: sympy.Expr, size: Any, equal: bool) -> None:
    with FakeTensorMode():  # as where graphs are compiled
        assert are_equal([ModularIndexing(X, 16, 8)], [other], {X: sympy.sympify(size)}) is equal
        assert not are_equal([X], [X, X], {X: sympy.Integer(4)})


def in_pieces(n: int, m: int) -> tuple[torch.fx.Graph, sympy.Expr, sympy.Expr]:
    """A graph with a tensor of `n` rows, a guard that `m` divides `n` if it does, and both symbols."""
    mode = FakeTensorMode(shape_env=ShapeEnv())
    context = StatelessSymbolicContext(dynamic_sizes=[Dim.DYNAMIC])
    rows, pieces = (
        mode.from_tensor(torch.empty(size), symbolic_context=context, source=ConstantSource(name))
        for size, name in ((n, "rows"), (m, "pieces"))
    )
    count, many = rows.shape[0], pieces.shape[0]
    if n % m == 0:
        assert count % many == 0
    graph = torch.fx.Graph()
    graph.placeholder("rows").meta["val"] = rows
    return graph, count.node.expr, many.node.expr


def test_sizes_that_guards_make_equal_have_one_form() -> None:
    graph, n, m = in_pieces(12, 4)
    assert canonical(64 * m * FloorDiv(n, m)) != 64 * n
    with guarded(graph):
        assert canonical(64 * m * FloorDiv(n, m)) == 64 * n
        assert canonical(m * FloorDiv(n, m) + FloorDiv(n, m)) == n + FloorDiv(n, m)
        assert canonical(FloorDiv(FloorDiv(n, m) + 1, 2)) == FloorDiv(FloorDiv(n, m) + 1, 2)


def test_no_guard_is_added_to_those_that_there_are() -> None:
    graph, n, m = in_pieces(12, 4)
    env = graph.find_nodes(op="placeholder")[0].meta["val"].fake_mode.shape_env
    before = [guard.expr for guard in env.guards]
    with guarded(graph):
        for true in (n >= 0, sympy.Eq(Mod(n, m), 0), n < 2**63 - 1):
            assert env.evaluate_expr(true) and env.guard_or_defer_runtime_assert(true, "")
        assert not env.evaluate_expr(n > 2**63 - 1)
        assert env.evaluate_expr(n > m, fallback_value=True)
        for ask in (env.evaluate_expr, lambda asked: env.guard_or_defer_runtime_assert(asked, "")):
            with pytest.raises(Decline, match="dynamic-shape"):
                ask(n > m)
    assert [guard.expr for guard in env.guards] == before
    assert env.evaluate_expr(n > m) and len(env.guards) == len(before) + 1


def test_lengths_that_are_padded_to_windows_have_one_form() -> None:
    graph, n, m = in_pieces(15, 5)
    added = Mod(7 - Mod(m, 7), 7)
    windows = FloorDiv(m + added, 7)
    with guarded(graph):
        assert canonical(windows * FloorDiv(m + added, windows) - added) == m
        assert canonical(FloorDiv(m + 1, 7) * 7) == 7 * FloorDiv(m + 1, 7)
        # What is left when the windows are gone is known as well: `n // m * m`.
        assert canonical(FloorDiv(n, m) * windows * 7 - FloorDiv(n, m) * added) == n


def test_a_symbol_that_a_guard_makes_a_quotient_has_its_form() -> None:
    graph, n, m = in_pieces(12, 4)
    rows = graph.find_nodes(op="placeholder")[0].meta["val"]
    context = StatelessSymbolicContext(dynamic_sizes=[Dim.DYNAMIC])
    width = rows.fake_mode.from_tensor(
        torch.empty(3), symbolic_context=context, source=ConstantSource("width")
    )
    env, symbol = rows.fake_mode.shape_env, width.shape[0].node.expr
    env.guards.append(mock.Mock(expr=sympy.Eq(symbol, FloorDiv(n, m), evaluate=False)))
    with guarded(graph):
        assert canonical(m * symbol) == n


@pytest.mark.parametrize("order", [1, -1])
def test_of_two_symbols_that_are_equal_the_one_that_torch_keeps_is_used(order: int) -> None:
    """Inductor's own simplification of indices uses that one."""
    graph, n, m = in_pieces(12, 12)
    env = graph.find_nodes(op="placeholder")[0].meta["val"].fake_mode.shape_env
    assert env.evaluate_expr(sympy.Eq(*(n, m)[::order]))
    for size in (n, m, 3 * n, 3 * m):
        with guarded(graph):
            assert canonical(size) == env.simplify(size)


def test_a_quotient_with_a_remainder_stays() -> None:
    graph, n, m = in_pieces(13, 4)
    with guarded(graph):
        assert canonical(m * FloorDiv(n, m)) == m * FloorDiv(n, m)


def test_a_graph_without_symbols_has_no_guards() -> None:
    with guarded(torch.fx.Graph()):
        assert canonical(X * (X + 1)) == X**2 + X
