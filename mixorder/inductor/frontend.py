"""Inductor's front end by itself: a graph goes up to the post-grad passes, and is then run node by node."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch._guards import TracingContext
from torch._inductor.compile_fx import _recursive_post_grad_passes as with_graphs_inside
from torch._inductor.compile_fx import fake_tensor_prop
from torch._inductor.fx_passes.post_grad import post_grad_passes, view_to_reshape
from torch._inductor.virtualized import V
from torch.fx import Graph, GraphModule, Interpreter, Node

from .graphs import mark_donated
from .tensors import FakeTensor, detect_fake_mode, is_dense

__all__ = ["post_grad_passes", "with_graphs_inside"]

InnerCompile = Callable[..., Callable[..., Any]]

DECOMPOSITIONS = "torch._refs", "torch._decomp", "torch._inductor.decomposition"


class _CalledGpu(str):
    """The CPU where tensors are made, and a GPU where code branches on its type."""

    type = "cuda"


@contextlib.contextmanager
def decomposed_as_on_gpu() -> Iterator[None]:
    """Inside, operators of fake tensors on the CPU are decomposed as those on a GPU. Some decompositions
    branch on the device: of group, layer and batch norms, and of a convolution's backward, whose bias
    gradient is a sum on a GPU alone."""
    original = FakeTensor.device

    def device(self: FakeTensor) -> Any:
        found = original.__get__(self)
        caller = sys._getframe(1).f_globals.get("__name__", "")
        return _CalledGpu("cpu") if found.type == "cpu" and caller.startswith(DECOMPOSITIONS) else found

    FakeTensor.device = property(device, original.__set__)  # type: ignore[assignment]
    try:
        yield
    finally:
        FakeTensor.device = original  # type: ignore[method-assign]


def compile_with(inner_compile: InnerCompile, gm: GraphModule, inputs: Sequence[Any]) -> Any:
    """Run AOTAutograd and decompositions on Dynamo's graph; `inner_compile` gets the forward, and later the
    backward."""
    from torch._inductor.compile_fx import compile_fx

    def compile_marked(gm: GraphModule, inputs: Sequence[Any], **kwargs: Any) -> Callable[..., Any]:
        mark_donated(gm.graph, **kwargs)
        return inner_compile(gm, inputs, **kwargs)

    return compile_fx(gm, inputs, inner_compile=compile_marked)


def faking(inputs: Sequence[Any]) -> contextlib.AbstractContextManager[Any]:
    """A context with the fake mode of a graph's inputs, which passes need."""
    return V.set_fake_mode(detect_fake_mode(inputs))


def report_strides(strides: Sequence[tuple[int, ...] | None]) -> None:
    """Tell AOTAutograd in which strides a compiled forward stores its outputs, as Inductor does."""
    context = TracingContext.try_get()
    if context is not None and context.output_strides == []:
        context.output_strides.extend(strides)


def stated_strides(graph: Graph) -> list[tuple[int, ...] | None]:
    """The strides of a graph's outputs. None for what is no tensor, or of symbolic strides."""
    (output,) = graph.find_nodes(op="output")
    vals = (n.meta.get("val") if isinstance(n, Node) else None for n in output.args[0])
    stated = (tuple(val.stride()) if isinstance(val, torch.Tensor) else None for val in vals)
    return [s if s is not None and all(isinstance(n, int) for n in s) else None for s in stated]


def with_strides(gm: GraphModule, inputs: Sequence[Any]) -> None:
    """Give a graph's values the strides that follow from its inputs, as Inductor does."""
    view_to_reshape(gm)
    with torch.no_grad():
        fake_tensor_prop(gm, inputs)


def run_by_node(gm: GraphModule, called: Callable[[], object] = lambda: None) -> Callable[[list[Any]], Any]:
    """A callable that AOTAutograd accepts as a compiled graph. It calls `called`, then runs the graph
    node by node and frees its arguments."""
    computed = [node for node in gm.graph.nodes if node.op == "call_function"]
    orders = {node: order for node in computed if (order := _order(node.meta.get("val"))) is not None}

    def call(args: list[Any]) -> Any:
        called()
        return _AsStated(gm, orders).boxed_run(args)

    call._boxed_call = True  # type: ignore[attr-defined]
    return call


def _order(val: Any) -> list[int] | None:
    """The dims of a dense tensor from the largest stride to the smallest one; None for any other value. Asks
    nothing of symbolic sizes, whose hints decide."""
    if not isinstance(val, torch.Tensor):
        return None
    shape, strides = ([_hint(n) for n in of] for of in (val.shape, val.stride()))
    if 0 in strides or not is_dense(torch.empty_strided(shape, strides, device="meta")):
        return None
    return sorted(range(len(shape)), key=lambda d: -strides[d])


def _hint(n: int | torch.SymInt) -> int:
    """A number, or the hint of a symbolic one; 0 for those by which strides do not tell dims apart."""
    if isinstance(n, int):
        return n
    hint = n.node.hint
    return int(hint) if hint is not None and hint > 1 else 0


class _AsStated(Interpreter):
    """Results lie as the graph states: in these strides Inductor gives them to kernels. Eager operators give
    others than those with fake tensors, such as for the product of an expanded tensor and a transposed one.

    `orders`: the `_order` of each dense result.
    """

    def __init__(self, gm: GraphModule, orders: dict[Node, list[int]]) -> None:
        super().__init__(gm)
        self.orders = orders

    def run_node(self, n: Node) -> Any:
        result = super().run_node(n)
        order = self.orders.get(n)
        if order is None or (moved := result.permute(order)).is_contiguous():
            return result
        return moved.contiguous().permute([*map(order.index, range(len(order)))])
