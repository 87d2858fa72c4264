"""Has Inductor choose the tiles of a loop by all that it reads, also by what our kernels have written.

Inductor tiles a kernel over two dims where its reads and writes are contiguous along different ones. It looks
up each read in the loop by the buffer's name. What a Triton kernel of a user has written has a new name in
the scheduler, which the loop does not use: Inductor finds no read, and walks along the write alone. Such a
transposed copy of a result of ours took five times as long as one of a buffer of Inductor's own.
"""

from __future__ import annotations

import copy
from typing import Any

from .allocation import launches_ours
from .wrapping import Function


def by_names_in_loops(original: Function, node: Any) -> Any:
    """Wraps the function of Inductor's that lists the reads of a loop."""
    stated = node.read_writes
    (first, *_) = node.get_nodes()  # 2.15 also asks of nodes that it may fuse, which have no scheduler
    names = _names_in_loops(first.scheduler, {dependency.name for dependency in stated.reads})
    if not names:
        return original(node)
    renamed = copy.copy(node)
    object.__setattr__(renamed, "read_writes", stated.rename(names))  # one of 2.15's is frozen
    return original(renamed)


def _names_in_loops(scheduler: Any, read: set[str]) -> dict[str, str]:
    """For the buffers in `read` that a kernel of ours has written: their names in loops."""
    return {
        name: scheduler.mutation_real_name[name]
        for name in read & scheduler.mutation_real_name.keys()
        if launches_ours(scheduler.name_to_buf[name].defining_op)
    }
