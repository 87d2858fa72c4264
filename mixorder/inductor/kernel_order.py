"""Orders a graph's kernels for less memory: moves kernels past the one at the peak while that lowers it.

Takes Inductor's scheduler nodes after `prepare_planning_info` of `torch._inductor.memory`, which notes what
each node waits for, and what each buffer takes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import accumulate, islice
from typing import Any

MOVES = 16  # in vain; each takes 1 or 2 ms per 100 kernels
ROUNDS = 64
HIGHEST = 8  # so many steps that take most are compared, as layers of a model often take the same

Timeline = list[Any]  # Inductor's records: a buffer, its bytes, the steps that make it and read it last


def lowered(nodes: list[Any], timeline_of: Callable[[list[Any]], Timeline]) -> list[Any]:
    """The kernels in an order that takes no more memory at the peak than the one given."""
    timeline = timeline_of(nodes)
    held = held_at(nodes, timeline)
    for _ in range(ROUNDS):
        for order in islice(_moves(nodes, timeline, held.index(max(held))), MOVES):
            new = timeline_of(order)
            now = held_at(order, new)
            if sorted(now, reverse=True)[:HIGHEST] < sorted(held, reverse=True)[:HIGHEST]:
                nodes, timeline, held = order, new, now
                break
        else:
            break
    return nodes


def held_at(nodes: list[Any], timeline: Timeline) -> list[int]:
    """The bytes that kernels in this order take at each step. What a loop writes where an operand lay is
    counted once."""
    changes = [0] * (len(nodes) + 1)
    results, operands = Counter[tuple[int, int]](), Counter[tuple[int, int]]()  # by step and bytes
    for info in timeline:
        given = _is_given(info.buffer)
        changes[info.start_step] += info.size_alloc
        if not given:
            results[info.start_step, info.size_alloc] += 1
        if info.end_step < 0:  # the graph returns it
            continue
        changes[info.end_step + 1] -= info.size_free
        if given or info.end_step > info.start_step:
            operands[info.end_step, info.size_free] += 1
    held = list(accumulate(changes))
    for (step, size), count in (results & operands).items():
        held[step] -= size * count * _is_loops(nodes[step])
    return held


def _moves(nodes: list[Any], timeline: Timeline, peak: int) -> Iterator[list[Any]]:
    """Orders in which a tensor that is held at the peak is read for the last time before it, or made after
    it; the largest first."""
    if peak >= len(nodes):
        return
    step = {node: i for i, node in enumerate(nodes)}
    at = [i for i in timeline if i.start_step <= peak and not 0 <= i.end_step <= peak]
    for info in sorted(at, key=lambda i: -i.size_alloc):
        if info.end_step > peak:
            early = _needed(nodes[info.end_step], step, peak)
            if nodes[peak] not in early:
                yield _with(nodes, early, peak)
        if 0 <= info.start_step < peak and not _is_given(info.buffer):
            late = _waiting(nodes, info.start_step, peak)
            if nodes[peak] not in late:
                yield _with(nodes, late, peak + 1)


def _needed(node: Any, step: dict[Any, int], first: int) -> set[Any]:
    """A node, and what it waits for from a step on."""
    found, todo = {node}, [node]
    while todo:
        new = {n for n in todo.pop().mpi_node.pred_nodes if step[n] >= first} - found
        found |= new
        todo += new
    return found


def _waiting(nodes: list[Any], first: int, last: int) -> set[Any]:
    """The node at a step, and what waits for it up to another step."""
    found = {nodes[first]}
    for node in nodes[first + 1 : last + 1]:
        if node.mpi_node.pred_nodes & found:
            found.add(node)
    return found


def _with(nodes: list[Any], moved: set[Any], place: int) -> list[Any]:
    """The nodes with those that move right before the one at a place, in their order."""
    kept = [n for n in nodes[:place] if n not in moved]
    return [*kept, *(n for n in nodes if n in moved), *(n for n in nodes[place:] if n not in moved)]


def _is_given(buffer: Any) -> bool:
    """Whether a buffer is an input of the graph."""
    from torch._inductor.memory import FreeableInputBuffer

    return isinstance(buffer, FreeableInputBuffer)


def _is_loops(node: Any) -> bool:
    """Whether a node is a kernel that Inductor generates, which may write where an operand lay."""
    from torch._inductor.scheduler import FusedSchedulerNode, SchedulerNode

    return isinstance(node, (FusedSchedulerNode, SchedulerNode)) and not node.is_template()
