"""The least time of a graph on a card: a roofline of what its operators compute and move.

Matrix products, convolutions and attention take as long as their multiplications at the card's peak, or as
their operands and results take to move. All other operators are taken for fused: only what the former read
and write, and what the graph takes and gives, is in memory.
"""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Iterable, Iterator, Mapping

import torch
from torch import Tensor
from torch.fx import Graph, Node
from torch.utils.flop_counter import flop_registry

from ..inductor.tensors import tree_leaves
from ..region.nodes import shows
from ..schedule.device import DeviceInfo

aten = torch.ops.aten

# Dense multiplications and additions per second, in units of 1e12, from the data sheets.
_HOPPER = {"fp8": 1979.0, "half": 989.4, "tf32": 494.7, "fp32": 66.9, "fp64": 66.9}
_AMPERE = {"half": 312.0, "tf32": 156.0, "fp32": 19.5, "fp64": 19.5}
PEAKS: Mapping[str, Mapping[str, float]] = {"H200": _HOPPER, "H100": _HOPPER, "A100": _AMPERE}
# Attention that only a CPU has: that of a GPU, and how many arguments tell its sizes.
ON_CPU = {
    aten._scaled_dot_product_flash_attention_for_cpu: (aten._scaled_dot_product_flash_attention, 3),
    aten._scaled_dot_product_flash_attention_for_cpu_backward: (
        aten._scaled_dot_product_flash_attention_backward,
        4,
    ),
}


@dataclasses.dataclass(frozen=True)
class Work:
    """Of each operator that multiplies: floating-point operations, bytes, and the kind of arithmetic; and the
    bytes of all others."""

    products: tuple[tuple[float, int, str], ...]
    moved: int


def microseconds(work: Work, device: DeviceInfo) -> float:
    """The least time; 0 for a device whose peak, or whose bandwidth, is unknown."""
    peaks = next((of for name, of in PEAKS.items() if name in device.name), None)
    if peaks is None or not device.bandwidth:
        return 0.0
    products = (
        max(flops / (1e12 * peaks.get(kind, peaks["half"])), moved / device.bandwidth)
        for flops, moved, kind in work.products
    )
    return 1e6 * (sum(products) + work.moved / device.bandwidth)


def work_of(graph: Graph) -> Work:
    """What a graph's operators compute and move."""
    products = list[tuple[float, int, str]]()
    read, written = set[Node](), set[Node]()
    for node in graph.nodes:
        operands = [_source(arg) for arg in node.all_input_nodes]
        if (flops := _flops(node)) is not None:
            tensors = list(_tensors([*operands, node]))
            kind = next((_kind(t) for t in tensors if t.is_floating_point()), "fp32")
            products.append((flops, sum(map(_bytes, tensors)), kind))
            written |= {arg for arg in operands if not _is_stored(arg)}
        elif node.op == "output":
            written |= {arg for arg in operands if not _is_stored(arg)}
        elif node.op == "call_function" and not shows(node):
            read |= {arg for arg in operands if _is_stored(arg)}
    read |= {
        node for node in written if any(_flops(user) is None and user.op != "output" for user in node.users)
    }
    return Work(tuple(products), sum(map(_bytes, _tensors([*read, *written]))))


def _source(node: Node) -> Node:
    """The node whose memory a view shows."""
    while node.op == "call_function" and shows(node):
        node = node.all_input_nodes[0]
    return node


def _is_stored(node: Node) -> bool:
    """Whether a tensor is in memory whatever Inductor fuses."""
    return node.op in ("placeholder", "get_attr") or _flops(node) is not None


def _flops(node: Node) -> float | None:
    """The floating-point operations of a node; None if it multiplies no matrices. Those of several results
    count at the node that gives them all."""
    if node.op != "call_function":
        return None
    if node.target is operator.getitem:
        (parent,) = node.all_input_nodes
        return None if _flops(parent) is None else 0.0
    packet = getattr(node.target, "overloadpacket", None)
    args = node.args
    if packet in ON_CPU:
        packet, count = ON_CPU[packet]
        args = args[:count]
    if (counted := flop_registry.get(packet)) is None:
        return None
    try:
        values = torch.fx.map_arg(args, lambda n: n.meta.get("val"))
        return float(counted(*values, out_val=node.meta.get("val")))
    except (TypeError, ValueError, AttributeError, IndexError):  # of arguments that torch does not count
        return 0.0


def _tensors(nodes: Iterable[Node]) -> Iterator[Tensor]:
    for node in nodes:
        yield from (t for t in tree_leaves(node.meta.get("val")) if isinstance(t, Tensor))


def _bytes(tensor: Tensor) -> int:
    sizes = (n if isinstance(n, int) else n.node.hint or 1 for n in tensor.shape)
    return int(tensor.dtype.itemsize * math.prod(sizes))


def _kind(tensor: Tensor) -> str:
    """The arithmetic of the products of a tensor."""
    if tensor.dtype is torch.float32:
        return "fp32" if torch.get_float32_matmul_precision() == "highest" else "tf32"
    return {1: "fp8", 2: "half", 8: "fp64"}[tensor.dtype.itemsize]
