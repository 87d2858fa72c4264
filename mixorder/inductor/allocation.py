"""Has Inductor allocate what our kernels write right before their launch, and order kernels for less memory.

A launch writes buffers that `empty_strided` made. To Inductor these are nodes of their own that depend on
nothing. Its reordering for peak memory may allocate them long before: the results of another layer's region
stood allocated from the start of the backward, 5% more memory (post-norm blocks under autocast). Or it finds
no order that is better than the graph's, and gains nothing where it would without us (another 7.6%). So it
gets a launch and its buffers as one node.

Inductor tries several orders, and keeps the one that it expects to take least memory. Its estimate counts a
result twice that is written where an operand lay, and in torch 2.11 it leaves out what the graph returns. So
the first kernel of a backward, that of the loss, is often its peak, and all orders seem equal: RoBERTa's
logits were copied, for a product, while all else was still saved, and the peak was 30% higher. It also takes
an input that a launch writes to for free from there on, and kept a buffer for later that did not fit: 28.1 MB
instead of 21.7 (two blocks of 1030 columns). Graphs with our launches get an estimate without these errors.

Inductor counts a launch that writes over an input among the users of all that was computed from that input.
So no kernel wrote its result over these: of two products, whose sum a launch read, all three were in memory
(160 MiB instead of 144).

Torch 2.13 gives a backward's list of donated inputs to the graphs inside it as well, which take it for one of
their own: a gradient of zeros that two calls of one region read was overwritten by the first one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from torch._inductor import memory

from .graphs import calls_graphs, our_kernel
from .kernel_order import held_at, least, tensors
from .wrapping import Function, during

# The orders of a graph with launches of ours that Inductor compares.
_tried: ContextVar[list[list[Any]] | None] = ContextVar("mixorder_tried_orders", default=None)


def late(
    original: Function,
    nodes: list[Any],
    buffers: Any,
    fused: dict[str, Any],
    given: Any,
    results: Any,
    *args: Any,
) -> Any:
    """Wraps the function of Inductor's that orders a graph's kernels."""
    if not any(map(launches_ours, nodes)):
        return original(nodes, buffers, fused, given, results, *args)
    groups = grouped(unpacked(sunk(nodes)))
    inside = {member.get_name(): group for group in groups for member in group.get_nodes()}
    tried: list[list[Any]] = []
    with during(_tried, tried):
        tried.append(original(groups, buffers, {**fused, **inside}, given, results, *args))
    freed = memory.get_freeable_input_buf(groups, given)
    timeline = memory.compute_memory_timeline(tried[-1], freed, results)[0]
    libraries = {group for group in groups if any(map(_has_several, group.get_nodes()))}
    order = least(tried, tensors(tried[-1], timeline), libraries)
    flat = [member for node in order for member in (node.snodes if _is_group(node) else [node])]
    # What Inductor noted of the groups' memory is noted of their parts, for the passes that follow.
    memory.prepare_planning_info(flat, buffers, fused, given, results)
    return flat


def nothing_donated(
    is_on: Callable[[], bool], original: Function, self: Any, gm: Any, *args: Any, **kwargs: Any
) -> None:
    """Wraps the constructor of Inductor's lowering of a graph. With mixorder, a graph that calls others, or
    that another one calls, is donated nothing (`calls_graphs`)."""
    original(self, gm, *args, **kwargs)
    if is_on() and (hasattr(self, "parent") or calls_graphs(gm.graph)):
        self.bw_donated_idxs = None


def estimated(original: Function, nodes: list[Any], *args: Any) -> Any:
    """Wraps the function of Inductor's that estimates what an order of kernels takes. Inductor also asks it
    whether a buffer may be kept until another of its size is made."""
    tried = _tried.get()
    if tried is not None:
        tried.append(nodes)
    elif not any(map(launches_ours, nodes)):
        return original(nodes, *args)
    held = held_at(nodes, tensors(nodes, memory.compute_memory_timeline(nodes, *args)[0]))
    # Nothing is kept across a library's kernel with several results, such as a convolution's backward or
    # an attention's: these take memory that no estimate has.
    most = max(held)
    several = {i for i, node in enumerate(nodes) if _has_several(node)}
    return most, [most if i in several else taken for i, taken in enumerate(held)]


def in_place(original: Function, self: Any) -> None:
    """Wraps Inductor's method that decides which operand's memory a kernel's result takes. A launch that only
    has to come after a kernel, since it writes over what that one reads, is no user of its result."""
    names = self.scheduler.name_to_buf
    read = [names[dep.name] for dep in self.read_writes.reads if dep.name in names]
    users = [buffer.users for buffer in read]
    for buffer in read:
        buffer.users = [u for u in buffer.users if not (u.is_weak and launches_ours(u.node))]
    try:
        original(self)
    finally:
        for buffer, before in zip(read, users, strict=True):
            buffer.users = before


def grouped(nodes: list[Any]) -> list[Any]:
    """Scheduler nodes in order, with each launch of ours, the empty buffers right before it, and the launches
    right after it that read its results as one node; so is a kernel with what takes its results apart."""
    from torch._inductor.scheduler import GroupedSchedulerNode

    node_groups: list[list[Any]] = []
    waiting: list[Any] = []  # empty buffers whose launch comes next
    for node in nodes:
        if _is_empty(node):
            waiting.append(node)
            continue
        if _unpacks(node) and not waiting and node_groups and _reads(node, node_groups[-1]):
            node_groups[-1].append(node)
        elif not launches_ours(node):
            node_groups += [[single] for single in (*waiting, node)]
        elif node_groups and _reads(node, node_groups[-1]):
            node_groups[-1] += [*waiting, node]
        else:
            node_groups.append([*waiting, node])
        waiting = []
    node_groups += [[single] for single in waiting]
    return [GroupedSchedulerNode(p[0].scheduler, p) if len(p) > 1 else p[0] for p in node_groups]


def sunk(nodes: list[Any]) -> list[Any]:
    """Scheduler nodes in order, with each empty buffer that a launch of ours is the first to use right before
    that launch."""
    first: dict[str, Any] = {}
    for node in nodes:
        for dependency in node.unmet_dependencies:
            first.setdefault(dependency.name, node)
    before: dict[Any, list[Any]] = defaultdict(list)
    for node in nodes:
        if node.unmet_dependencies or not _is_empty(node):
            continue
        user = first.get(node.get_outputs()[0].get_name())
        if user is not None and launches_ours(user):
            before[user].append(node)
    moved = {node for group in before.values() for node in group}
    return [placed for node in nodes if node not in moved for placed in (*before.get(node, ()), node)]


def unpacked(nodes: list[Any]) -> list[Any]:
    """Scheduler nodes in order, with what takes one of a kernel's several results right behind that kernel.
    The kernel allocates them all, and they live as long as one is still to be taken; to Inductor, each is
    allocated where it is taken, and is best taken late."""
    makers = {b.get_name(): node for node in nodes for b in node.get_outputs()}
    behind: dict[Any, list[Any]] = defaultdict(list)
    for node in filter(_unpacks, nodes):
        (made,) = node.unmet_dependencies
        behind[makers[made.name]].append(node)
    moved = {node for group in behind.values() for node in group}

    def following(node: Any) -> list[Any]:
        return [node, *(follower for taken in behind.get(node, ()) for follower in following(taken))]

    return [follower for node in nodes if node not in moved for follower in following(node)]


def _has_several(node: Any) -> bool:
    """Whether a scheduler node is a kernel with several results."""
    from torch._inductor.ir import MultiOutputLayout

    return isinstance(getattr(getattr(node, "node", None), "layout", None), MultiOutputLayout)


def _unpacks(node: Any) -> bool:
    """Whether a scheduler node takes one of several results of a kernel, and waits for nothing else."""
    from torch._inductor.ir import MultiOutput

    return isinstance(getattr(node, "node", None), MultiOutput) and len(node.unmet_dependencies) == 1


def _reads(node: Any, group: list[Any]) -> bool:
    """Whether a node reads what one of a group wrote: of a launch, what a launch wrote."""
    made = (writer for writer in group if launches_ours(writer) or _unpacks(node))
    written = {b.get_name() for writer in made for b in writer.get_outputs()}
    return any(dependency.name in written for dependency in node.unmet_dependencies)


def _is_group(node: Any) -> bool:
    from torch._inductor.scheduler import GroupedSchedulerNode

    return isinstance(node, GroupedSchedulerNode)


def _is_empty(node: Any) -> bool:
    """Whether a scheduler node allocates a buffer and computes nothing."""
    from torch._inductor.scheduler import NopKernelSchedulerNode

    return isinstance(node, NopKernelSchedulerNode)


def launches_ours(node: Any) -> bool:
    """Whether a scheduler node is a launch of a kernel of mixorder's."""
    return our_kernel(getattr(getattr(node, "node", None), "kernel_idx", None)) is not None
