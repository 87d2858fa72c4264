"""The predicted time of what a smaller region leaves to Inductor, as loops of its own."""

from __future__ import annotations

import math

import sympy
from torch.fx import Node

from ..inductor.graphs import OpOverload
from ..inductor.symbols import hint_of
from ..region.nodes import fake, is_pointwise, is_view, operands, shape_of
from ..region.region import Region
from .device import DeviceInfo
from .facts import cost_of
from .kernel_time import TIMES, Kind, Times
from .work import Work


def outside_us(whole: Region, part: Region, device: DeviceInfo, times: Times = TIMES) -> float:
    """Microseconds of the loops that compute what `part` reads and `whole` computes, and of those that write
    what `whole` wrote. Loops that other nodes need anyway take no time.

    Each tensor that is written is computed in one loop over its elements, with all that it is computed from:
    Inductor computes again what several loops use. One kernel writes all tensors of one size.
    """
    members = set(whole.nodes)
    lost = members - set(part.nodes)
    left = {n for n in lost if all(u in members for u in n.users)} | lost.intersection(whole.outputs)
    written = left.intersection((*part.inputs, *whole.outputs))
    if not written:
        return 0.0
    read = {a for n in left for a in operands(n) if a not in left and not is_view(n)}
    moved = sum(map(_bytes, read | written))
    launches = len({_elements(n) for n in written})
    computing = sum(_elements(n) * sum(map(_instructions, _made_of(n, left - written))) for n in written)
    return times.launch_us * launches + times.us(Kind.POINTWISE, Work(moved, moved, computing), device)


def _made_of(node: Node, nodes: set[Node]) -> set[Node]:
    """A node, and those of `nodes` that it is computed from."""
    found, todo = {node}, [node]
    while todo:
        more = set(operands(todo.pop())) & nodes - found
        found |= more
        todo += more
    return found


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
