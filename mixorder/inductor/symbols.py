"""Torch's integer expressions: the functions in indices, bounds, and properties of sizes."""

from __future__ import annotations

import contextlib
import functools
import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, TypeVar
from unittest import mock

import sympy
import torch
from torch._inductor.virtualized import V
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.utils._sympy.functions import FloorDiv, Max, Min, Mod, ModularIndexing
from torch.utils._sympy.numbers import int_oo
from torch.utils._sympy.symbol import SymT, symbol_is_type
from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy

from ..errors import Decline, DeclineReason
from .wrapping import during

__all__ = ["FloorDiv", "Mod", "ModularIndexing"]

T = TypeVar("T")

INDEX_FUNCTIONS: dict[str, Callable[..., int]] = {
    "FloorDiv": lambda at, by: at // by,
    "ModularIndexing": lambda at, by, size: at // by % size,
    "Mod": lambda at, by: at % by,
    "PythonMod": lambda at, by: at % by,
    "CeilDiv": lambda at, by: -(-at // by),
    "Where": lambda condition, then, otherwise: then if condition else otherwise,
    "Identity": lambda at: at,
}
"""The functions in indices on numbers, by name."""
SIZE_FUNCTIONS: dict[type, Callable[..., Any]] = {
    sympy.Add: operator.add,
    sympy.Mul: operator.mul,
    FloorDiv: operator.floordiv,
    Mod: operator.mod,
    Max: torch.sym_max,
    Min: torch.sym_min,
}
"""What computes the functions in sizes, two operands at a time."""
INT32_LIMIT = torch.iinfo(torch.int32).max + 1
SIZES = ValueRanges(-int_oo, 2**62)
"""A size is less than the 2**63 - 1 that stand for the end of a slice."""


class _Guards:
    """What torch's guards say of symbolic sizes, such as that one divides another."""

    def __init__(self, shape_env: Any) -> None:
        self.shape_env = shape_env
        self.known: dict[sympy.Expr, sympy.Expr] = {}  # sizes that were asked for, and their canonical form
        self.sums: dict[sympy.Expr, sympy.Expr] = {}  # and those of their terms, after one step
        equal = _equal_symbols(guard.expr for guard in shape_env.guards)
        self.equal = {symbol: shape_env.simplify(expr) for symbol, expr in equal.items()}
        self.divisible = {self._plain(remainder) for remainder in shape_env.divisible}
        self.made: dict[int, tuple[object, Any]] = {}  # what `once_a_graph` has made of each object

    def canonical(self, size: sympy.Expr) -> sympy.Expr:
        # What is left of one product may be another: `a // b * b`, where `b` divides `a`. Should forms become
        # longer and longer, it ends.
        steps = [size]
        while (last := steps[-1]) not in self.known:
            simpler = self._found(last)
            if simpler in steps or len(steps) == 8:
                self.known[last] = last
            else:
                steps.append(simpler)
        self.known.update(dict.fromkeys(steps, self.known[last]))
        return self.known[size]

    def _found(self, size: sympy.Expr) -> sympy.Expr:
        return self._sum(self._plain(self.shape_env.simplify(self._plain(size))))

    def _plain(self, size: sympy.Expr) -> sympy.Expr:
        return size.xreplace(self.equal).replace(_is_clean, lambda quotient: FloorDiv(*quotient.args))

    def _sum(self, size: sympy.Expr) -> sympy.Expr:
        if size not in self.sums:
            terms = map(self._term, sympy.Add.make_args(size))
            self.sums[size] = sympy.expand(sum(terms, sympy.S.Zero))
        return self.sums[size]

    def _term(self, term: sympy.Expr) -> sympy.Expr:
        """A product, without the divisions that leave no remainder and that a factor undoes."""
        powers = [factor.as_base_exp() for factor in sympy.Mul.make_args(term)]
        for i, (base, power) in enumerate(powers):
            powers[i] = self._inside(base), power
            for quotient in dict.fromkeys((base, powers[i][0])):
                if isinstance(quotient, FloorDiv) and (exact := self._exact(*quotient.args)) is not None:
                    tried = [*powers[:i], (exact, power), *powers[i + 1 :]]
                    powers = tried if _fractions(_product(tried)) <= _fractions(_product(powers)) else powers
        return _product(powers)

    def _inside(self, factor: sympy.Expr) -> sympy.Expr:
        """A factor whose operands, if it is a quotient or a remainder, are without such divisions as well."""
        if not isinstance(factor, FloorDiv | Mod):
            return factor
        return factor.func(*map(self._sum, factor.args))

    def _exact(self, whole: sympy.Expr, divisor: sympy.Expr) -> sympy.Expr | None:
        """A quotient as a fraction, where there is no remainder: torch says so, or a number divides it. A
        length that was padded to windows of 7 is a multiple of 7, and has 7 to each of its windows."""
        if isinstance(divisor, FloorDiv) and divisor.args[0] == whole and _divides(divisor.args[1], whole):
            return divisor.args[1]
        exact = _divides(divisor, whole) or Mod(whole, divisor) in self.divisible
        return whole / divisor if exact else None


def _equal_symbols(guards: Iterable[sympy.Expr]) -> dict[sympy.Symbol, sympy.Expr]:
    """Symbols that are one operation on others, such as the width where it is `n // height`. Of two that are
    equal, torch replaces one by the other itself."""
    equal: dict[sympy.Symbol, sympy.Expr] = {}
    made_of: set[sympy.Basic] = set()
    for guard in guards:
        for symbol, expr in (guard.args, guard.args[::-1]) if isinstance(guard, sympy.Eq) else ():
            free = expr.free_symbols
            simple = bool(free) and not expr.is_Symbol and all(arg.is_Atom for arg in expr.args)
            if symbol.is_Symbol and simple and symbol not in made_of and free.isdisjoint({symbol, *equal}):
                equal.setdefault(symbol, expr)
                made_of |= free
    return equal


_guards: ContextVar[_Guards | None] = ContextVar("mixorder_guards", default=None)


@contextlib.contextmanager
def guarded(graph: torch.fx.Graph) -> Iterator[None]:
    """Inside, `canonical` knows the guards of a graph's symbolic sizes, and none is added to them: a question
    of torch's whose answer would need one raises `Decline`."""
    vals = (node.meta.get("val") for node in graph.nodes)
    tensors = (val for val in vals if isinstance(val, torch.Tensor))
    mode = next((m for val in tensors if (m := getattr(val, "fake_mode", None)) is not None), None)
    shape_env = getattr(mode, "shape_env", None)
    within = contextlib.nullcontext() if shape_env is None else _without_new_guards(shape_env)
    with during(_guards, None if shape_env is None else _Guards(shape_env)), within:
        yield


@contextlib.contextmanager
def _without_new_guards(shape_env: Any) -> Iterator[None]:
    """Inside, torch answers what is asked of sizes only where the answer holds for all of them, or with the
    value to fall back on that comes with the question."""
    within = functools.cache(lambda known: known & SIZES if known.is_int else known)

    def evaluate_expr(
        orig_expr: sympy.Basic,
        hint: Any = None,
        fx_node: Any = None,
        size_oblivious: bool = False,
        fallback_value: bool | None = None,
        **_: Any,
    ) -> Any:
        ranges = tuple((s, within(r)) for s, r in shape_env.var_to_range.items())
        value = shape_env._maybe_evaluate_static(
            orig_expr, size_oblivious=size_oblivious, var_to_range=ranges
        )
        if value is None and fallback_value is None:
            raise Decline(DeclineReason.DYNAMIC_SHAPE, f"the kernel would need a guard on {orig_expr}")
        return fallback_value if value is None else value

    def expect(orig_expr: sympy.Basic, msg: str, fx_node: Any = None) -> Any:
        return evaluate_expr(orig_expr)

    with mock.patch.multiple(shape_env, evaluate_expr=evaluate_expr, guard_or_defer_runtime_assert=expect):
        yield


def canonical(size: sympy.Expr) -> sympy.Expr:
    """A size in a form in which those that the guards make equal are the same: a view of `n` rows in `m`
    pieces has `m * (n // m)` of them, which is `n`, as torch has checked that `m` divides it."""
    guards = _guards.get()
    return sympy.expand(size) if guards is None else guards.canonical(size)


def _is_clean(expr: sympy.Expr) -> bool:
    """Whether torch notes of a quotient that it has no remainder, by a class of its own."""
    return isinstance(expr, FloorDiv) and type(expr) is not FloorDiv


def _product(powers: Sequence[tuple[sympy.Expr, sympy.Expr]]) -> sympy.Expr:
    return sympy.expand(sympy.Mul(*(base**power for base, power in powers)))


def _divides(divisor: sympy.Expr, size: sympy.Expr) -> bool:
    """Whether a number divides a size for all values of its symbols."""
    if not (divisor.is_Integer and divisor > 0):
        return False
    terms = sympy.Add.make_args(sympy.expand(_congruent(size, divisor)))
    return all(term.as_coeff_Mul()[0] % divisor == 0 for term in terms)


def _congruent(size: sympy.Expr, by: sympy.Expr) -> sympy.Expr:
    """A size with the same remainder: `x` for `x % by`, also in sums and products."""
    if isinstance(size, Mod) and size.args[1] == by:
        return _congruent(size.args[0], by)
    return size.func(*(_congruent(arg, by) for arg in size.args)) if size.is_Add or size.is_Mul else size


def _fractions(expr: sympy.Expr) -> set[sympy.Expr]:
    """What an expression divides by, also inside of functions, and its rational numbers."""
    numbers = expr.atoms(sympy.Rational) - expr.atoms(sympy.Integer)
    return {*numbers, *(power for power in expr.atoms(sympy.Pow) if power.exp.is_negative)}


def bounds(expr: sympy.Expr, sizes: Mapping[sympy.Symbol, sympy.Expr]) -> tuple[Any, Any]:
    """The least and the largest value, both inclusive, where each symbol is from 0 to its size - 1."""
    interval = bound_sympy(expr, {symbol: ValueRanges(0, size - 1) for symbol, size in sizes.items()})
    return interval.lower, interval.upper


def wide_symbols(
    indices: Iterable[sympy.Expr], sizes: Mapping[sympy.Symbol, sympy.Expr]
) -> frozenset[sympy.Symbol]:
    """The symbols that a kernel has in 64 bits, so that no part of these indices leaves 32: of each part that
    would, the first one in the order of `sizes`.

    A symbol of `sizes` is from 0 to its size - 1. Lanes beyond that wrap around only in what is masked: they
    are fewer than the others, and have room by themselves. Other symbols are symbolic sizes, each of which
    fits by itself, as Inductor passes it in 64 bits otherwise; of a product of such, nothing is known.
    """
    exprs = dict.fromkeys(e for index in indices for e in sympy.postorder_traversal(index))
    symbols = set[sympy.Symbol]().union(*(expr.free_symbols for expr in exprs))
    known = {s: n if sympy.sympify(n).is_number else int_oo for s, n in sizes.items()}
    order = [*known, *sorted(symbols - known.keys(), key=str)]
    known |= dict.fromkeys(symbols - known.keys(), int_oo)
    wide = set[sympy.Symbol]()
    for expr in exprs:
        while not _fits_32_bits(narrow := _computed_without(expr, wide), sizes, known):
            wide.add(next(s for s in order if s in narrow.free_symbols))
    return frozenset(wide)


def _computed_without(expr: sympy.Expr, wide: set[sympy.Symbol]) -> sympy.Expr:
    """What is computed of an expression before a symbol in 64 bits comes in."""
    if expr.is_Add or expr.is_Mul:
        return expr.func(*(arg for arg in expr.args if wide.isdisjoint(arg.free_symbols)))
    return expr if wide.isdisjoint(expr.free_symbols) else sympy.S.Zero


def _fits_32_bits(
    expr: sympy.Expr, sizes: Mapping[sympy.Symbol, Any], known: Mapping[sympy.Symbol, Any]
) -> bool:
    if expr.is_Symbol:
        return bool(expr not in sizes or 2 * known[expr] < INT32_LIMIT)
    if not expr.free_symbols:
        return True
    # Also what is computed on the way to a sum, and the number in a product with what is always zero.
    terms = [_limits(term, known) for term in sympy.Add.make_args(expr)]
    low, high = sum(min(0, low) for low, _ in terms), sum(max(0, high) for _, high in terms)
    factor = abs(expr.as_coeff_Mul()[0])
    return bool(low >= -INT32_LIMIT and high < INT32_LIMIT and factor < INT32_LIMIT)


def _limits(term: sympy.Expr, known: Mapping[sympy.Symbol, Any]) -> tuple[Any, Any]:
    """The `bounds` of a term; of a product of symbols without the time that these take."""
    factors = sympy.Mul.make_args(term)
    if not all(factor.is_Integer or factor in known for factor in factors):
        return bounds(term, known)
    ends = [int(f) if f.is_Integer else known[f] - 1 for f in factors]
    most = 0 if 0 in ends else math.prod(ends)  # infinity times zero would be NaN
    return min(0, most), max(0, most)


def depends_on_data(symbol: sympy.Symbol) -> bool:
    """Whether a size is known only when the graph runs, such as that of `nonzero`."""
    return symbol_is_type(symbol, SymT.UNBACKED_INT)


def hint_of(symbol: sympy.Symbol) -> int:
    """The value that a symbolic size had when the graph was traced. Needs a `lowerings.context`."""
    return int(V.fake_mode.shape_env.backed_var_to_val[symbol])


def once_a_graph(of: object, make: Callable[[], T]) -> T:
    """What `make` gives; inside `guarded`, what it gave first for this object."""
    guards = _guards.get()
    if guards is None:
        return make()
    if id(of) not in guards.made:
        guards.made[id(of)] = of, make()
    made: T = guards.made[id(of)][1]
    return made


def simplified(expr: sympy.Expr, sizes: Mapping[sympy.Symbol, sympy.Expr]) -> sympy.Expr:
    """The expression, simpler where each symbol is less than its size. Needs a `lowerings.context`."""
    return _without_outer_remainders(V.graph.sizevars.simplify_with_ranges(expr, sizes))


def are_equal(
    left: Sequence[sympy.Expr], right: Sequence[sympy.Expr], sizes: Mapping[sympy.Symbol, sympy.Expr]
) -> bool:
    """Whether two indices are the same where each symbol is from 0 to its size - 1.

    The algebra of divisions does not see that of each: indices that differ are evaluated at all points, if
    the sizes are known and there are 4 million at most, which takes 0.3 s."""
    if list(left) == list(right) or len(left) != len(right):
        return list(left) == list(right)
    both = [*left, *right]
    symbols = sorted(set[sympy.Symbol]().union(*(i.free_symbols for i in both)), key=str)
    known = [int(n) for s in symbols if (n := sizes.get(s)) is not None and n.is_number]
    if len(known) < len(symbols) or math.prod(known) > 2**22:
        return False
    places = sympy.lambdify(symbols, both, modules=[INDEX_FUNCTIONS])
    with unset_fake_temporarily():
        ranges = [torch.arange(n, device="cpu") for n in known]
        at = torch.meshgrid(*ranges, indexing="ij") if known else ()
        values = [torch.as_tensor(value, device="cpu") for value in places(*at)]
        pairs = zip(values[: len(left)], values[len(left) :], strict=True)
        return all(bool((a == b).all()) for a, b in pairs)


def _without_outer_remainders(expr: sympy.Expr) -> sympy.Expr:
    """`x % 49 % 7` as `x % 7`, and `x % 49 // 7` as `x // 7 % 7`, also behind divisions.

    Inductor leaves the first, and up to torch 2.11 the second: equal indices then differ, and what they load
    is computed twice."""

    def shorter(inner: sympy.Expr, by: sympy.Expr, size: sympy.Expr) -> sympy.Expr:
        if isinstance(inner, ModularIndexing) and inner.args[2] % (by * size) == 0:
            return ModularIndexing(inner.args[0], inner.args[1] * by, size)
        return ModularIndexing(inner, by, size)

    def divided(inner: sympy.Expr, by: sympy.Expr) -> sympy.Expr:
        if isinstance(inner, ModularIndexing) and inner.args[2] % by == 0:
            return ModularIndexing(inner.args[0], inner.args[1] * by, inner.args[2] // by)
        return FloorDiv(inner, by)

    if not expr.has(ModularIndexing):
        return expr
    return expr.replace(ModularIndexing, shorter).replace(FloorDiv, divided)
