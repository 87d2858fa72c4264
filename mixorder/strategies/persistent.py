"""A program keeps a row in registers from its first reduction to its last."""

from __future__ import annotations

import functools
from collections.abc import Iterator

from ..codegen.kernel import generate
from ..codegen.persistent import persistent_kernel
from ..schedule import persistent
from ..schedule.device import DeviceInfo
from ..schedule.facts import RowFacts
from ..schedule.persistent_search_space import PersistentSearchSpace
from ..schedule.plan import Plan
from .strategy import Strategy


def _more_spills(facts: RowFacts, device: DeviceInfo, split_size: int) -> Iterator[Plan]:
    """The plan chosen if more spills are allowed than without timing."""
    yield persistent.choose(facts, device, split_size, spill_factor=1.5)


PERSISTENT = Strategy(
    "persistent",
    rank=20,
    choose=persistent.choose,
    starts=_more_spills,
    search_space=PersistentSearchSpace,
    generate=functools.partial(generate, persistent_kernel),
)
