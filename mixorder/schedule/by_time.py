"""A plan near the rules' choice that is predicted to be faster. Nothing is timed here.

The rules were fitted to norms of long rows. The prediction also sees what they do not look at: lanes beyond a
row's end, the instructions of compensated sums, and programs that have a multiprocessor for themselves, with
nothing to do while a reduction waits.
"""

from __future__ import annotations

from collections.abc import Callable

from .device import DeviceInfo
from .facts import Facts
from .limits import MAX_STAGES, spilled
from .plan import Plan
from .space import Space
from .unstaged import stalls

GAIN = 0.92  # of the time of the rules' choice, at most: the prediction is off by 8% on average
ROUNDS = 6
# Rows of a tile with chunks, or with tensors that lie both along rows and along columns, loaded ahead. H200,
# 50176x192 in chunks: 8x4w5s 60 us, 16x8w5s 104, predicted 64 and 66; 12544x160: 8x4w3s 21, 16x8w3s 24. H100,
# 3136x320 in chunks: 4x2w5s 11.5, 8x4w5s 12.8, 16x8w5s 17.3, 16x16w5s 24.5, predicted 8.3.
CHUNKED_ROWS = 8
# Bytes of a thread's accesses in a chunk, at least: 3136x320 with 4 bytes 24.5 us, with 2 19.9. Those of a
# mask may have half of it: so many bytes of an element count at least. H100, 16384x768 in 3 chunks behind
# dropout's mask: 1x2w3s 95 us, 1x2w5s 154.
CHUNK_ACCESS, LEAST_ITEM = 8, 2
# Programs of one warp on a multiprocessor, whose rows are far apart (a batch axis) and in chunks, and which
# reduce all columns to one: below so many, their tiles have twice the rows and the warps. H200: all 9 such
# kernels take 7 to 30% less time. Of four with results for each column, three take 1 to 20% more with their
# finalisation, which starts while they run; without a batch axis, 40 of 44 take 2 to 40% more.
FEW_PROGRAMS = 4


def improved(space: Space, facts: Facts, us: Callable[[Plan], float], device: DeviceInfo) -> Plan:
    """The plan that a search from the space's start ends at, with `us` as the predicted microseconds; the
    start itself where that gains too little.

    Only of programs that reduce along their rows, all of them in the same way, and that load ahead. Of
    others, a thread's loads or what it computes decides, and the prediction does not know enough of either.
    Nor of programs with one tile (`persistent.WHOLE`).
    """
    if space.start.finishes and space.start.tile_rows >= facts.rows:
        return space.start
    waits = stalls(facts) or facts.hot
    if facts.levels == 0 or facts.divergent or waits or space.start.group > 1:
        return space.start
    known: dict[Plan, float] = {}

    def time(plan: Plan) -> float:
        if plan not in known:
            known[plan] = us(plan)
        return known[plan]

    best = space.start
    for _ in range(ROUNDS):
        around = [s for s in space.near(best) if _can_run_well(s, facts)]
        nearest = min([best, *around], key=time) if around else best
        if nearest == best:
            break
        best = nearest
    if best != space.start and time(best) >= GAIN * time(space.start):
        best = space.start
    more = _with_more_warps(best, facts, device)
    return more if space.legal(more) else best


def _can_run_well(plan: Plan, facts: Facts) -> bool:
    elements = plan.per_thread(plan.lanes)
    access = plan.per_thread(plan.chunk) * max(LEAST_ITEM, facts.item_bytes)
    if plan.chunks > 1 and access < CHUNK_ACCESS and plan.launch.num_stages > 1:
        return False
    if (facts.both_ways or plan.chunks > 1) and plan.tile_rows > CHUNKED_ROWS:
        return False
    return not spilled(facts, elements, plan.chunks) and plan.launch.num_stages <= MAX_STAGES


def _with_more_warps(plan: Plan, facts: Facts, device: DeviceInfo) -> Plan:
    """The plan with twice the warps on a multiprocessor, where programs of one warp go through several
    tiles with chunks, and are too few."""
    rows, launch, programs = plan.tile_rows, plan.launch, plan.splits * facts.batch
    steps = -(-facts.rows // (rows * plan.splits))
    alone = facts.batch > 1 and facts.common and launch.num_warps == 1 and plan.chunks > 1
    if not alone or steps == 1 or programs >= FEW_PROGRAMS * device.num_sm:
        return plan
    return plan.changed(tile_rows=2 * rows, num_warps=2, num_stages=max(2, launch.num_stages - 1))
