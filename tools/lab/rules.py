"""The package's rules, passes and strategies, each with what takes its place where it is switched off.

`RULES` are named by module and function, method or constant. `watched` finds in which graphs a function's
answer is another than its substitute's: in all others, nothing changes without the rule. `off` puts the
substitute in its place, in every module that has it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import inspect
import math
import sys
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

PACKAGE = "mixorder"


def first(value: Any, *_: Any) -> Any:
    return value


def second(_: Any, value: Any, *__: Any) -> Any:
    return value


def gives(value: Any) -> Callable[..., Any]:
    return lambda *_, **__: value


def empty(kind: type) -> Callable[..., Any]:
    return lambda *_, **__: kind()


@dataclasses.dataclass(frozen=True)
class Idle:
    """Does nothing, in place of what changes its first operand; `state`: what can change of that."""

    state: Callable[[Any], Any]

    def __call__(self, *_: Any) -> None: ...


nothing, no, yes, none = gives(None), gives(False), gives(True), empty(list)

RULES: dict[str, Any] = {
    # What is looked for, and how regions grow.
    "region.find._of_this_norm": second,
    "region.find._behind_results": empty(set),
    "region.find._companions": lambda analysis, outer: [outer],
    "region.find._joins_a_loop": no,
    "region.find.with_chained_reductions": lambda analysis, space, inner, outer: inner,
    "region.find.group_seed": nothing,
    "region.find.tile_seed": nothing,
    "region.find.transposed_seed": nothing,
    "region.find.near_misses": none,
    "region.grow._without_sources_of_reads": first,
    "region.grow._of_other_axes": empty(frozenset),
    "region.grow._PairGrowth.adopt": Idle(lambda growth: len(growth.members)),
    "region.grow._PairGrowth.is_shared": no,
    "region.grow._PairGrowth.feeds_another": no,
    "region.grow._PairGrowth.waits": no,
    "region.grow._PairGrowth.kept_fp32": empty(frozenset),
    "region.members.Members.cheapest": lambda members, outputs, permuted: [*outputs],
    "region.row_permutations.is_row_permutation": no,
    "region.padding.has_gaps": no,
    "region.padding.fills_gaps": no,
    "region.cat_slices.cat_slices_of": empty(dict),
    "region.gathers.is_gather": no,
    "region.gathers.is_made_of_pieces": no,
    "region.transposed.sibling_results": none,
    # Smaller regions and other ones.
    "region.variants.less": nothing,
    "region.variants.with_recomputed": nothing,
    "region.variants.smaller": none,
    "region.variants.lighter": none,
    "region.variants._read_alike": empty(set),
    "region.variants._by_tensor": none,
    "region.variants._last_steps": empty(set),
    "region.variants._behind_inner": empty(set),
    "region.variants._recomputing": none,
    "region.variants._tables": empty(set),
    "region.variants._unrounded": first,
    "region.producers.with_row_values": nothing,
    "search.remainder_us": gives(0.0),
    "planning.improved": lambda strategy, loops, facts, schedule, device: schedule,
    "schedule.by_time.divided": lambda space, plan, us: plan,
    "planning.check_time": nothing,
    "schedule.predicted.check_size": nothing,
    "schedule.predicted.SURELY_SAVED": 0.0,
    "region.peak_memory.Timeline.fits": yes,
    # Passes over graphs.
    "rewrite.sizes.sizes_from_inputs": Idle(str),
    "rewrite.canonicalise.Canonicaliser.begin": Idle(lambda canonicaliser: len(canonicaliser.rewrites)),
    "rewrite.canonicalise.find_piecewise": none,
    "rewrite.added_first._of_rows": nothing,
    "rewrite.canonicalise._is_of_one_each": no,
    "rewrite.canonicalise._columns": nothing,
    "rewrite.added_first._of_reduction_groups": nothing,
    "rewrite.added_first._as_another": nothing,
    "rewrite.canonicalise.chained": empty(dict),
    "rewrite.canonicalise._of_row_values": none,
    "rewrite.canonicalise._piece": nothing,
    "rewrite.canonicalise._joins": no,
    "rewrite.canonicalise._expanded": nothing,
    "rewrite.pieces.pieces_read": nothing,
    "rewrite.pieces.pieces_of": nothing,
    "rewrite.pieces.shared_pieces": none,
    "rewrite.rewrite.copy_slices": Idle(str),
    # Passes over loops.
    "transform.relative.in_two_steps": first,
    "transform.one_hot.sum_one_hot": first,
    "transform.alignment.row_alignment": nothing,
    "transform.fma.form_fma": first,
    "transform.operators.contract": first,
    "transform.in_place.reuse_in_place": first,
    "transform.finished.finished": first,
    "transform.register_scheduling.schedule_for_registers": first,
    "transform.branches.without_branches": none,
    "transform.few_bits.divide_by_few_bits": none,
    "transform.half_precision.without_rounding": none,
    "transform.powers_of_two.multiply_by_reciprocals": none,
    "transform.quotients.divide_by_blocks": none,
    "transform.rounding.round_at_once": none,
    "transform.saturation.without_clamp": none,
    "transform.single_precision.divide_in_float32": none,
    # Schedules.
    "schedule.persistent._is_narrowed": no,
    "schedule.persistent._is_computing": no,
    "schedule.persistent._only_sums": no,
    "schedule.persistent.BUSY_BLOCK": 2048,
    "schedule.persistent.SHARED_BYTES": math.inf,
    "schedule.no_prefetch.without_prefetch": second,
    "schedule.no_prefetch.reloads": no,
    "schedule.no_prefetch.is_latency_bound": no,
    "schedule.no_prefetch.MANY_PROGRAMS": math.inf,
    "schedule.tile.staged_results": empty(dict),
    "schedule.tile._in_sectors": gives(1.0),
    "schedule.facts.is_branching": no,
}
STRATEGIES = {
    "strategies.column_blocks": "blocks of columns",
    "strategies.persistent": "persistent",
    "strategies.cooperative": "cooperative",
    "strategies.reduction_groups": "two-pass",
    "strategies.whole_groups": "whole groups",
    "strategies.tile": "blocks in a tile",
}
RULES |= dict.fromkeys(STRATEGIES)


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a rule is: a module or class, and the name there."""

    owner: Any
    name: str

    @property
    def now(self) -> Any:
        return getattr(self.owner, self.name)

    def everywhere(self) -> Iterator[Any]:
        """The modules that have it, by whatever import, and the class."""
        yield self.owner
        if not inspect.ismodule(self.owner) or not callable(self.now):
            return
        modules = [m for name, m in sys.modules.items() if name.startswith(f"{PACKAGE}.") and m]
        yield from (m for m in modules if m is not self.owner and vars(m).get(self.name) is self.now)


def place_of(rule: str) -> Place:
    *path, name = rule.split(".")
    for end in range(len(path), 0, -1):
        try:
            owner = importlib.import_module(".".join((PACKAGE, *path[:end])))
        except ModuleNotFoundError:
            continue
        return Place(functools.reduce(getattr, path[end:], owner), name)
    raise ValueError(f"no module of {PACKAGE} has {rule}")


@contextlib.contextmanager
def _in_place(place: Place, value: Any) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for owner in list(place.everywhere()):
            stack.enter_context(mock.patch.object(owner, place.name, value))
        yield


@contextlib.contextmanager
def off(rule: str) -> Iterator[None]:
    """Inside, a rule is switched off."""
    from mixorder.planning import planning_with, setting_in_force

    if rule in STRATEGIES:
        left = tuple(s for s in setting_in_force().strategies if s.name != STRATEGIES[rule])
        with planning_with(strategies=left):
            yield
        return
    with _in_place(place_of(rule), RULES[rule]):
        yield


@contextlib.contextmanager
def watched() -> Iterator[set[str]]:
    """The rules whose answer, inside, is once another than their substitute's, and the strategies that ran a
    region's program. A constant, which no call tells of, is among them from the start."""
    differing: set[str] = set()
    of_name = {name: rule for rule, name in STRATEGIES.items()}
    with contextlib.ExitStack() as stack:
        chosen = place_of("planning.by_first_strategy")
        original = chosen.now

        def by_first_strategy(*args: Any) -> Any:
            choice = original(*args)
            if (strategy := getattr(choice, "strategy", None)) is not None:
                differing.add(of_name[strategy.name])
            return choice

        stack.enter_context(_in_place(chosen, by_first_strategy))
        for rule in RULES.keys() - STRATEGIES.keys():
            place = place_of(rule)
            if callable(place.now):
                asked = _asked(place.now, RULES[rule], functools.partial(differing.add, rule))
                stack.enter_context(_in_place(place, asked))
            else:
                differing.add(rule)
        yield differing


def _asked(function: Callable[..., Any], substitute: Callable[..., Any], note: Callable[[], None]) -> Any:
    @functools.wraps(function)
    def asked(*args: Any, **kwargs: Any) -> Any:
        before = substitute.state(args[0]) if isinstance(substitute, Idle) else None
        try:
            answer = function(*args, **kwargs)
        except Exception:
            note()
            raise
        if inspect.isgenerator(answer):
            return _noted(answer, note)
        if not (
            substitute.state(args[0]) == before
            if isinstance(substitute, Idle)
            else _same(answer, substitute(*args))
        ):
            note()
        return answer

    return asked


def _noted(items: Iterator[Any], note: Callable[[], None]) -> Iterator[Any]:
    for item in items:
        note()
        yield item


def _same(answer: Any, expected: Any) -> bool:
    try:
        return answer is expected or bool(answer == expected)
    except Exception:  # sizes that cannot be compared
        return False
