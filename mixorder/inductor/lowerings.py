"""Inductor's lowerings: they turn an operator and its arguments into a `TensorBox`, whose loader is traced.

Dtype promotion, the decomposition into scalar ops and the index arithmetic of views are Inductor's.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import sympy
import torch
from torch._inductor import ir
from torch._inductor.graph import GraphLowering
from torch._inductor.ir import TensorBox
from torch._inductor.lowering import lowerings
from torch._inductor.virtualized import OpsValue, V, ops
from torch.fx import Node

from ..errors import Decline, DeclineReason
from . import gathers
from .ops import is_handling
from .symbols import once_a_graph

__all__ = ["TensorBox"]


@contextlib.contextmanager
def context(like: Any) -> Iterator[None]:
    """Inside, lowerings find the graph state that they need: size variables and device of a fake tensor."""
    graph = once_a_graph(like.fake_mode, functools.partial(_state, like.fake_mode))
    with (
        V.set_graph_handler(graph),
        V.set_fake_mode(like.fake_mode),
        graph.set_current_device(_gpu(like.device)),
    ):
        yield


def _state(mode: Any) -> GraphLowering:
    """Of a graph without nodes. It remembers how indices are simplified."""
    nothing = torch.fx.Graph()
    nothing.output(())
    empty = torch.fx.GraphModule({}, nothing)
    with V.set_fake_mode(mode):
        return GraphLowering(empty, shape_env=mode.shape_env)


def _gpu(device: torch.device) -> torch.device:
    """Lowerings branch on the device type. The generated code is Triton, so they must see a GPU."""
    return device if device.type != "cpu" else torch.device("cuda", 0)


def leaf(
    node: Node,
    like: torch.Tensor,
    size: Sequence[sympy.Expr],
    value: Callable[[Node, tuple[sympy.Expr, ...]], Any],
    handler: Any,
) -> TensorBox:
    """A box for a node with the dtype and device of `like`: its elements are the results of `value`.

    For any other handler of ops it is a load: Inductor counts ops and reads while it lowers.
    """

    def inner_fn(index: Sequence[sympy.Expr]) -> Any:
        if not is_handling(handler):
            return ops.load(node.name, sympy.S.Zero)
        return OpsValue(value(node, tuple(index)))

    return ir.Pointwise.create(
        device=_gpu(like.device), dtype=like.dtype, inner_fn=inner_fn, ranges=list(size)
    )


def lowered(node: Node, operand: Callable[[Node], Any]) -> Any:
    """The result of the lowering of a node's operator; nodes among its arguments become `operand(node)`.

    Raises `Decline` for an operator that cannot be lowered outside of a whole graph.
    """
    args, kwargs = torch.fx.map_arg((node.args, node.kwargs), operand)
    lowering = gathers.LOWERINGS.get(node.target) or lowerings[node.target]  # type: ignore[index]
    V.graph.current_node = node  # its metadata says where `emulate_precision_casts` rounds
    try:
        return lowering(*args, **kwargs)
    except Decline:
        raise
    except Exception as error:  # such as a lowering that calls an ATen kernel, which needs a whole graph
        detail = f"{node.target}: its lowering ends in {type(error).__name__}: {error}"
        raise Decline(DeclineReason.UNSUPPORTED_OP, detail, node.name) from error


def is_loop(result: Any) -> bool:
    """Whether a lowering's result is a tensor whose elements can be computed one by one."""
    data, boxes = result, (ir.TensorBox, ir.StorageBox, ir.BaseView)
    while isinstance(data, boxes):
        data = data.data
    return isinstance(result, ir.TensorBox) and isinstance(data, ir.Pointwise)
