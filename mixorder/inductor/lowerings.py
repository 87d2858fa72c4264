"""Inductor's lowerings: they turn an operator and its arguments into a `TensorBox`, whose loader is traced.

Dtype promotion, the decomposition into scalar ops and the index arithmetic of views are Inductor's.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Hashable, Iterator, Sequence
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
from .ops import unwrapped
from .symbols import once_a_graph

__all__ = ["TensorBox"]


Read = Callable[[int, tuple[sympy.Expr, ...]], Any]


class _Empty(GraphLowering):
    """The state that lowerings find: a graph without nodes, which remembers how indices are simplified.

    `boxes`: the results of lowerings, by what they saw. `read`: gives the elements of a leaf, by its number,
    to the box that is evaluated; None while an operator is lowered.
    """

    def __init__(self, mode: Any) -> None:
        nothing = torch.fx.Graph()
        nothing.output(())
        super().__init__(torch.fx.GraphModule({}, nothing), shape_env=mode.shape_env)
        self.boxes: dict[Hashable, Any] = {}
        self.read: Read | None = None

    @contextlib.contextmanager
    def reading(self, read: Read | None) -> Iterator[None]:
        outer, self.read = self.read, read
        try:
            yield
        finally:
            self.read = outer


@contextlib.contextmanager
def context(like: Any) -> Iterator[None]:
    """Inside, lowerings find the graph state that they need: size variables and device of a fake tensor."""
    with V.set_fake_mode(like.fake_mode):
        graph = once_a_graph(like.fake_mode, functools.partial(_Empty, like.fake_mode))
        with V.set_graph_handler(graph), graph.set_current_device(_gpu(like.device)):
            yield


def _gpu(device: torch.device) -> torch.device:
    """Lowerings branch on the device type. The generated code is Triton, so they must see a GPU."""
    return device if device.type != "cpu" else torch.device("cuda", 0)


def leaf(number: int, like: torch.Tensor, size: Sequence[sympy.Expr]) -> TensorBox:
    """A box with the dtype and device of `like`. Its elements are those that `evaluated` reads.

    While an operator is lowered it is a load: Inductor counts ops and reads then.
    """

    def inner_fn(index: Sequence[sympy.Expr]) -> Any:
        if (read := V.graph.read) is None:
            return ops.load(f"leaf{number}", sympy.S.Zero)
        return OpsValue(read(number, tuple(index)))

    return ir.Pointwise.create(
        device=_gpu(like.device), dtype=like.dtype, inner_fn=inner_fn, ranges=list(size)
    )


def evaluated(box: TensorBox, index: Sequence[sympy.Expr], read: Read) -> Any:
    """The element of a box at an index, by the handler of `ops` in force. `read` gives those of its leaves by
    number."""
    with V.graph.reading(read):
        return unwrapped(box.make_loader()(index))


def lowered(node: Node, operand: Callable[[Node], Any], key: Hashable | None) -> Any:
    """The result of the lowering of a node's operator; nodes among its arguments become `operand(node)`. With
    a key, what was given for it before.

    Raises `Decline` for an operator that cannot be lowered outside of a whole graph.
    """
    if key in V.graph.boxes:
        return V.graph.boxes[key]
    args, kwargs = torch.fx.map_arg((node.args, node.kwargs), operand)
    lowering = gathers.LOWERINGS.get(node.target) or lowerings[node.target]  # type: ignore[index]
    V.graph.current_node = node  # `graphs.ROUNDED` in its metadata is read here
    try:
        with V.graph.reading(None):
            result = lowering(*args, **kwargs)
    except Decline:
        raise
    except Exception as error:  # such as a lowering that calls an ATen kernel, which needs a whole graph
        detail = f"{node.target}: its lowering ends in {type(error).__name__}: {error}"
        raise Decline(DeclineReason.UNSUPPORTED_OP, detail, node.name) from error
    if key is not None:
        V.graph.boxes[key] = result
    return result


def is_loop(result: Any) -> bool:
    """Whether a lowering's result is a tensor whose elements can be computed one by one."""
    data, boxes = result, (ir.TensorBox, ir.StorageBox, ir.BaseView)
    while isinstance(data, boxes):
        data = data.data
    return isinstance(result, ir.TensorBox) and isinstance(data, ir.Pointwise)
