"""A schedule near the rules' choice that is predicted to be faster. Nothing is timed here.

The rules were fitted to norms of long rows. The prediction also sees what they do not look at: lanes beyond a
row's end, the instructions of compensated sums, and programs that have a multiprocessor for themselves, with
nothing to do while a reduction waits.
"""

from __future__ import annotations

from collections.abc import Callable

from .facts import ASYNC_BYTES, Facts
from .limits import MAX_STAGES, spilled
from .schedule import Schedule
from .space import Space
from .unstaged import stalls

GAIN = 0.92  # of the time of the rules' choice, at most: the prediction is off by 8% on average
ROUNDS = 6
# Of tensors that lie both along rows and along columns, in a tile that is loaded ahead. H200, 50176x192 in
# chunks: 8x4w5s 60 us, 16x8w5s 104, predicted 64 and 66; 12544x160: 8x4w3s 21, 16x8w3s 24.
BOTH_WAYS_ROWS = 8


def improved(space: Space, facts: Facts, us: Callable[[Schedule], float]) -> Schedule:
    """The schedule that a search from the space's start ends at, with `us` as the predicted microseconds; the
    start itself where that gains too little.

    Only of programs that reduce along their rows, all of them in the same way, and that load ahead. Of
    others, a thread's loads or what it computes decides, and the prediction does not know enough of either.
    Nor of programs with one tile (`persistent.WHOLE`).
    """
    if space.start.finishes and space.start.tile.xblock >= facts.rows:
        return space.start
    waits = stalls(facts) or facts.hot
    if facts.levels == 0 or facts.divergent or facts.rereads or waits or space.start.parts > 1:
        return space.start
    known: dict[Schedule, float] = {}

    def time(schedule: Schedule) -> float:
        if schedule not in known:
            known[schedule] = us(schedule)
        return known[schedule]

    best = space.start
    for _ in range(ROUNDS):
        around = [s for s in space.near(best) if _can_run_well(s, facts)]
        nearest = min([best, *around], key=time)
        if nearest == best:
            break
        best = nearest
    return best if time(best) < GAIN * time(space.start) else space.start


def _can_run_well(schedule: Schedule, facts: Facts) -> bool:
    threads = 32 * schedule.tile.num_warps
    elements = max(1, schedule.tile.xblock * schedule.r0_block // threads)
    own = schedule.tile.xblock * schedule.chunk // threads
    if own * facts.item_bytes < ASYNC_BYTES and schedule.tile.num_stages > 1:
        return (
            False  # H100, 3136x320 in chunks of 64: a thread with one element of each, 13.0 us, predicted 4.2
        )
    if facts.both_ways and schedule.tile.xblock > BOTH_WAYS_ROWS:
        return False
    return not spilled(facts, elements, schedule.chunks) and schedule.tile.num_stages <= MAX_STAGES
