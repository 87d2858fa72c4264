"""A plan near the rules' choice that is predicted to be faster. Nothing is timed here.

The rules were fitted to norms of long rows. The prediction also sees what they do not look at: lanes beyond a
row's end, the instructions of compensated sums, and programs that have a multiprocessor for themselves, with
nothing to do while a reduction waits.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from .facts import RowFacts
from .no_prefetch import is_latency_bound
from .plan import Plan
from .search_space import SearchSpace

DIVIDED_GAIN = 0.95  # the same of twice the programs, which differ in little else


def improved(
    space: SearchSpace, facts: RowFacts, us: Callable[[Plan], float], exposed_us: Callable[[Plan], float]
) -> Plan:
    """The plan that a search from the space's start ends at, with `us` as the predicted microseconds; the
    start itself where that gains too little. It is divided as `exposed_us` tells.

    Only of programs that reduce along their rows, all of them in the same way, and that prefetch. Of
    others, a thread's loads or what it computes decides, and the prediction does not know enough of either.
    """
    waits = is_latency_bound(facts) or facts.loads.cached_table
    if facts.levels == 0 or waits or space.start.group > 1:
        return space.start
    time = functools.cache(us)
    best = space.start
    for _ in range(6):
        around = [s for s in space.near(best) if s.chunks == 1 or s.tile_rows <= 8]
        nearest = min([best, *around], key=time) if around else best
        if nearest == best:
            break
        best = nearest
    # The prediction is off by 8% on average.
    if best != space.start and time(best) >= 0.92 * time(space.start):
        best = space.start
    return divided(space, best, exposed_us)


def divided(space: SearchSpace, plan: Plan, us: Callable[[Plan], float]) -> Plan:
    """The plan with twice the programs, as often as that is predicted to gain."""
    while True:
        nearest = min(space.divided(plan), key=us, default=plan)
        if us(nearest) >= DIVIDED_GAIN * us(plan):
            return plan
        plan = nearest
