"""Orders a graph's kernels for less memory: takes the best of several orders, and moves kernels past the one
at the peak while that lowers it.

Takes Inductor's scheduler nodes after `prepare_planning_info` of `torch._inductor.memory`, which notes what
each node waits for, and what each buffer takes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import accumulate, chain
from typing import Any


@dataclass(frozen=True, eq=False)
class Tensor:
    """Bytes of a buffer when it is made and when it is freed; the node that makes it, None for an input of
    the graph; those that read it; whether the graph returns it.

    `loops`: of these nodes, as several loops may be one kernel, the loop that makes it, or the last to read
    it."""

    made: int
    freed: int
    maker: Any
    readers: tuple[Any, ...]
    returned: bool
    loops: Mapping[Any, Any] = field(default_factory=dict)


def tensors(nodes: Sequence[Any], timeline: Sequence[Any]) -> list[Tensor]:
    """What a graph holds. `timeline`: the records of Inductor's `compute_memory_timeline` of these nodes.

    Inductor takes an input for free once a kernel has written over it, though others read what was written.
    """
    last = {info.buffer.get_name(): info.end_step for info in timeline}
    over: dict[str, list[Any]] = {}  # what was written over a buffer, by the buffer's name
    for buffer in (buffer for node in nodes for buffer in node.get_outputs()):
        for name in buffer.get_mutations():
            over.setdefault(name, []).append(buffer)
    held = []
    for info in timeline:
        given = _is_given(info.buffer)
        names = list(_written_over(info.buffer, over)) if given else [info.buffer]
        readers = {node: None for buffer in names for node in buffer.mpi_buffer.succ_nodes}
        returned = any(last.get(buffer.get_name(), 0) < 0 for buffer in names)
        maker = None if given else nodes[info.start_step]
        loops = {node: _last_loop(node, {buffer.get_name() for buffer in names}) for node in readers}
        if maker is not None:
            loops[maker] = _last_loop(maker, {info.buffer.get_name()})
        held.append(Tensor(info.size_alloc, info.size_free, maker, tuple(readers), returned, loops))
    return held


def _last_loop(node: Any, names: Set[str]) -> Any:
    """The last of a kernel's loops that reads or writes one of some buffers, if any does."""
    using = [loop for loop in node.get_nodes() if not names.isdisjoint(loop.used_or_aliased_buffer_names())]
    return using[-1] if using else None


def _written_over(buffer: Any, over: Mapping[str, Sequence[Any]]) -> Iterator[Any]:
    """A buffer, and all that have its memory after it."""
    yield buffer
    for mutation in over.get(buffer.get_name(), ()):
        yield from _written_over(mutation, over)


def least(
    orders: Iterable[Sequence[Any]], held: Sequence[Tensor], libraries: Collection[Any] = ()
) -> list[Any]:
    """Of several orders of the same kernels, those within 2% of the lowest peak lowered, the one with the
    lowest peak; of equal ones, within 0.1%, that which holds least while `libraries` run, then over all
    steps. Libraries take memory that no estimate has, such as a convolution's backward or an attention's, and
    find it where less is held.
    """

    def most(order: Sequence[Any], taken: Sequence[int]) -> tuple[int, int]:
        return sum(size for node, size in zip(order, taken, strict=False) if node in libraries), sum(taken)

    peaks = {order: max(held_at(order, held)) for order in map(tuple, orders)}
    promising = [order for order, peak in peaks.items() if peak <= 1.02 * min(peaks.values())]
    candidates = [(order, held_at(order, held)) for order in (lowered(nodes, held) for nodes in promising)]
    lowest = min(max(taken) for _, taken in candidates)
    return min(
        (candidate for candidate in candidates if max(candidate[1]) <= 1.001 * lowest),
        key=lambda candidate: most(*candidate),
    )[0]


def lowered(nodes: Sequence[Any], held: Sequence[Tensor]) -> list[Any]:
    """The kernels in an order that takes no more memory at the peak than the one given."""
    order, most = list(nodes), 64  # rounds, and orders that are tried in vain in each
    best = held_at(order, held)
    for _ in range(most):
        before, vain = order, 0
        peaks = [node for node, taken in zip(order, best, strict=False) if taken == max(best)]
        for node, late, peak in chain.from_iterable(_moves(order, held, peak) for peak in peaks):
            if (candidate := _moved(order, node, late, peak)) is None:
                continue
            now = held_at(candidate, held)
            # Layers of a model often take the same: the steps that take most are compared.
            if sorted(now, reverse=True)[:8] < sorted(best, reverse=True)[:8]:
                order, best = candidate, now
            elif (vain := vain + 1) == most:
                break
        if order is before:
            break
    return order


def held_at(nodes: Sequence[Any], held: Iterable[Tensor]) -> list[int]:
    """The bytes that kernels in this order take at each step. What a loop writes where an operand lay is
    counted once: Inductor looks for an operand that no other loop reads later, one of the same kernel
    included."""
    step = {node: i for i, node in enumerate(nodes)}
    changes = [0] * (len(nodes) + 1)
    # By step, bytes, and loop of the step's kernel.
    results, operands = Counter[tuple[int, int, Any]](), Counter[tuple[int, int, Any]]()
    for tensor in held:
        first, last = _span(tensor, step)
        changes[first] += tensor.made
        if tensor.maker is not None:
            results[first, tensor.made, tensor.loops.get(tensor.maker)] += 1
        if tensor.returned:
            continue
        changes[last + 1] -= tensor.freed
        if tensor.maker is None or last > first:
            operands[last, tensor.freed, tensor.loops.get(nodes[last])] += 1
    totals = list(accumulate(changes))
    for (at, size, _), count in (results & operands).items():
        totals[at] -= size * count * _is_loops(nodes[at])
    return totals


def _span(tensor: Tensor, step: dict[Any, int]) -> tuple[int, int]:
    first = 0 if tensor.maker is None else step[tensor.maker]
    return first, max((step[node] for node in tensor.readers), default=first)


def _moves(nodes: list[Any], held: Iterable[Tensor], peak: Any) -> Iterator[tuple[Any, bool, Any]]:
    """What moves past the kernel at the peak: a kernel that makes a tensor which is held there, to a later
    place, or the last that reads it, to an earlier one; the largest tensors first. Both with that kernel."""
    step = {node: i for i, node in enumerate(nodes)}
    at, spans = step[peak], [(tensor, *_span(tensor, step)) for tensor in held]
    there = [
        (tensor, first, last)
        for tensor, first, last in spans
        if first <= at and (tensor.returned or last > at)
    ]
    for tensor, first, last in sorted(there, key=lambda entry: -entry[0].made):
        if tensor.maker is not None and first < at:
            yield tensor.maker, True, peak
        if not tensor.returned:
            yield nodes[last], False, peak


def _moved(nodes: list[Any], node: Any, late: bool, peak: Any) -> list[Any] | None:
    """The kernels with one, and those that depend on it, behind the one at the peak; or, with all that it
    needs, in front of it. None if the two depend on each other, or if it is there already."""
    step = {kernel: i for i, kernel in enumerate(nodes)}
    at = step[peak]
    if (step[node] < at) is not late:
        return None
    moving = _waiting(nodes, step[node], at) if late else _needed(node, step, at)
    return None if peak in moving else _with(nodes, moving, at + late)


def _needed(node: Any, step: dict[Any, int], first: int) -> set[Any]:
    """A node, and what it waits for from a step on."""
    needed, todo = {node}, [node]
    while todo:
        new = {n for n in todo.pop().mpi_node.pred_nodes if step[n] >= first} - needed
        needed |= new
        todo += new
    return needed


def _waiting(nodes: list[Any], first: int, last: int) -> set[Any]:
    """The node at a step, and what waits for it up to another step."""
    waiting = {nodes[first]}
    for node in nodes[first + 1 : last + 1]:
        if not waiting.isdisjoint(node.mpi_node.pred_nodes):
            waiting.add(node)
    return waiting


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
