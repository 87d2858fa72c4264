"""The predicted time of what a smaller region leaves to Inductor, as loops of its own.

Without the region, Inductor computes the same inside the loops that read it, and stores nothing of it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Sequence

import sympy
from torch.fx import Node

from ..inductor.config import realize_threshold
from ..inductor.graphs import OpOverload
from ..inductor.symbols import hint_of
from ..region.gathers import is_gather, is_gather_view
from ..region.nodes import fake, is_constant, is_pointwise, is_view, operands, reduction_kind, shape_of
from ..region.region import Region
from ..region.walk import ancestors, by_position
from .apart import Kernel, microseconds
from .device import DeviceInfo
from .facts import cost_of
from .kernel_time import TIMES, Kind, Times
from .work import Work

COPY = 6  # operations of a copy that puts elements at other places, for its bounds: torch 2.11 to 2.15
# Of the predicted time of such a loop. H200 and H100, 10 regions: the loops take 1.09 to 1.49 times as long,
# 1.15 in the middle. The share of memory's rate in `times.json` is that of loops with a sum beside them.
SLOWER = 1.15


@dataclasses.dataclass(frozen=True)
class Outside:
    """What a part of a region leaves to Inductor. `work`: of the loops that write it. `launches`: of them.
    `inside`: what the same adds to the loops of Inductor's that stand for the part: they read what it is
    computed from instead of the results, and compute each result for all of their elements."""

    work: Work
    launches: int
    inside: Work

    def us(self, device: DeviceInfo, times: Times = TIMES) -> float:
        """Microseconds of the loops."""
        if not self.launches:
            return 0.0
        return times.launch_us * self.launches + SLOWER * times.us(Kind.POINTWISE, self.work, device)


NOTHING = Outside(Work(0, 0), 0, Work(0, 0))


def outside(whole: Region, part: Region) -> Outside:
    """The loops that compute what `part` reads and `whole` computes, and those that write what `whole` wrote.
    Loops that other nodes need anyway do not count, nor do values that take so many operations that Inductor
    stores them in any case.

    Each tensor that is written is computed in one loop over its elements, with all that it is computed
    from: Inductor computes again what several loops use. One kernel writes all tensors of one size.
    """
    members = set(whole.nodes)
    lost = members - set(part.nodes)
    left = {n for n in lost if all(u in members for u in n.users)} | lost.intersection(whole.outputs)
    written = left.intersection((*part.inputs, *whole.outputs))
    if not part.inner:  # Inductor as well has loops that write a result, and others that add it up
        written -= set(part.inputs).intersection(whole.outputs)
        left = {n for result in written for n in _made_of(result, left)}
    if not written:
        return NOTHING
    first = {n for read in left.intersection(part.inputs) for n in _made_of(read, left)}
    left -= _stored_anyway(left - written) & first
    read = _sources(left, set(part.nodes) - set(part.outputs))
    moved, results = sum(map(_bytes, read | written)), sum(map(_bytes, written.difference(whole.outputs)))
    again = sum(map(_bytes, written.intersection(part.inputs)))  # the part's loops read these
    computing = {n: _elements(n) * sum(map(_instructions, _made_of(n, left - written))) for n in written}
    shared = sum(map(_bytes, read & {*part.inputs, *part.nodes}))  # and have these in any case
    inside = moved - results - again - shared
    spread = sum(count * _times(n, whole) for n, count in computing.items())
    launches = len({_elements(n) for n in written})
    work = Work(moved, moved, sum(computing.values()))
    return Outside(work, launches, Work(inside, inside, spread))


def _sources(nodes: set[Node], computed: set[Node]) -> set[Node]:
    """What loops that compute some nodes read. They compute what is among `computed` as well."""
    inside = set(ancestors(nodes, lambda node: node in nodes or node in computed))
    reading = (node for node in inside if node in computed or _is_read(node, nodes))
    return {operand for node in reading for operand in operands(node)} - computed - nodes


def _is_read(node: Node, nodes: set[Node]) -> bool:
    """Whether loops that compute some nodes read the operands of one of them. They do not for a view of a
    result."""
    return not is_view(node) or any(user in nodes for user in node.users)


def _stored_anyway(nodes: Collection[Node]) -> set[Node]:
    """Those of some nodes that Inductor stores, or that only these are computed from."""
    found = _large(nodes)
    for node in reversed(by_position(nodes)):
        if all(user in found for user in node.users):
            found.add(node)
    return found


def _large(nodes: Collection[Node]) -> set[Node]:
    """Those of some nodes that take so many operations that Inductor stores them."""
    count: dict[Node, int] = {}  # operations of a loop that computes a node
    large = set()
    for node in by_position(nodes):
        numbers = sum(isinstance(a, int | float) for a in node.args)
        moves = 0 if is_view(node) or is_gather_view(node) else COPY
        own = moves if is_view(node) or is_gather(node) else 1 + numbers
        count[node] = own + sum(count.get(a, 1) for a in operands(node) if not is_constant(a))
        if reduction_kind(node) is not None:
            count[node] = 1
        elif count[node] > realize_threshold("opcount"):
            large.add(node)
            count[node] = 1
    return large


def _times(node: Node, whole: Region) -> float:
    """How often Inductor computes each element of a tensor of a region: once for each element of the values
    that it stores and that take the tensor, and of the region's space if others take it."""
    members, large = set(whole.nodes), _large(whole.nodes)
    seen, todo, elements = {node}, [node], 0
    over_space = False
    while todo:
        users = todo.pop().users.keys() & members - seen
        seen |= users
        reductions = {user for user in users if reduction_kind(user) is not None}
        elements += sum(_elements(user) for user in users & large)
        over_space |= bool(reductions)
        todo += users - large - reductions
    if over_space or not elements:
        elements += _hint(sympy.sympify(whole.seed.analysis.numel))
    return max(1.0, elements / max(1, _elements(node)))


def apart_us(kernels: Sequence[Kernel], left: Outside, device: DeviceInfo, times: Times = TIMES) -> float:
    """Microseconds of Inductor's kernels for a part, whose first kernel computes what the part leaves
    outside, from rows that lie in memory as that kernel's other rows do."""
    first, *others = kernels
    touched = sum({a.buffer: a.touched for a in first.accesses}.values())
    sectors = first.work.dram / touched if touched else 1.0
    inside = dataclasses.replace(left.inside, dram=left.inside.dram * sectors)
    first = dataclasses.replace(first, work=first.work + inside)
    return microseconds([first, *others], device, times)


def _made_of(node: Node, nodes: set[Node]) -> set[Node]:
    """A node, and those of `nodes` that it is computed from."""
    return {node, *ancestors(operands(node), nodes.__contains__)}


def _elements(node: Node) -> int:
    shape = shape_of(node)
    return 0 if shape is None else math.prod(_hint(sympy.sympify(size)) for size in shape)


def _bytes(node: Node) -> int:
    val = fake(node)
    return 0 if val is None else _elements(node) * val.dtype.itemsize


def _hint(expr: sympy.Expr) -> int:
    return int(expr.xreplace({s: hint_of(s) for s in expr.free_symbols}))


def _instructions(node: Node) -> int:
    """Machine instructions of a node for one element, by the name of its operator; a view has none."""
    if not (is_pointwise(node) and isinstance(node.target, OpOverload)):
        return 0
    name = node.target.name()  # such as aten::pow.Tensor_Scalar
    return cost_of(name.partition("::")[2].partition(".")[0])
