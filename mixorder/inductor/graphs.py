"""Torch's properties of a post-grad graph's nodes: kinds of operators, memory, and launches of kernels."""

from __future__ import annotations

import functools
import operator
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
import torch._inductor.config as config
from torch._guards import TracingContext
from torch._higher_order_ops import triton_kernel_wrap
from torch._higher_order_ops.triton_kernel_wrap import (
    kernel_side_table,
    triton_kernel_wrapper_functional,
    triton_kernel_wrapper_mutation,
)
from torch._inductor.fx_utils import get_node_storage
from torch._inductor.inductor_prims import prepare_softmax_online
from torch._library.utils import get_layout_constraint_tag
from torch._ops import HigherOrderOperator, OpOverload
from torch.utils.checkpoint import CheckpointPolicy
from torch.utils.flop_counter import flop_registry

from . import mutation_cache

__all__ = [
    "HigherOrderOperator",
    "OpOverload",
    "get_node_storage",
    "prepare_softmax_online",
    "triton_kernel_wrapper_functional",
]

LAUNCHES = (triton_kernel_wrapper_functional, triton_kernel_wrapper_mutation)
_BY_PLACE = (torch.ops.aten.as_strided.default, torch.ops.aten.as_strided_scatter.default)

ROUNDED = "low_precision_pointwise_barrier"
"""Metadata of a node whose operands and result Inductor rounds. `emulate_precision_casts` sets it for all."""

TWO_MASKS = "mixorder_masks"
"""Metadata of a node that is computed from either of two equal masks."""

CONTRACTED = "mixorder_contracted"
"""Metadata of a sum that every kernel contracts with its product, as Inductor's do."""

RECOMPUTE = "recompute"
"""Metadata of a node in a joint graph: its policy of activation checkpointing."""

RECOMPUTED = "mixorder_again"
"""Metadata of a node that a backward recomputes, and that has to have the bits of the forward."""


@functools.cache
def is_lowered_pointwise(target: object) -> bool:
    """Whether Inductor turns an operator into a loop over the elements of its result."""
    from torch._inductor.lowering import fallbacks, lowerings

    if target is torch.ops.prims.convert_element_type.default:
        return True
    return (
        isinstance(target, OpOverload)
        and torch.Tag.pointwise in target.tags
        and torch.Tag.nondeterministic_seeded not in target.tags
        and target in lowerings
        and target not in fallbacks
        and not target._schema.is_mutable
    )


def has_kernel_of_its_own(node: torch.fx.Node) -> bool:
    """Whether a node is a product or a convolution, whose result Inductor's loops load. Of a convolution, it
    adds the bias in a loop."""
    target = node.target
    if target is torch.ops.aten.convolution.default and node.args[2] is not None:
        return False
    return isinstance(target, OpOverload) and target.overloadpacket in flop_registry


def takes_stated_strides(target: object) -> bool:
    """Whether Inductor gives an operator its operands in the strides that the graph states, also where loops
    compute them: a Triton kernel, a scaled matrix product, one that looks at places in memory, a custom
    operator that does not say otherwise."""
    if isinstance(target, OpOverload):
        return target in _BY_PLACE or get_layout_constraint_tag(target) != torch.Tag.flexible_layout
    return target in LAUNCHES


def takes_any_strides(target: object) -> bool:
    """Whether an operator that is no loop computes the same from a tensor of any strides, and Inductor gives
    it those that the graph then states: a convolution, but none that looks at places in memory."""
    return isinstance(target, OpOverload) and not (target.is_view or takes_stated_strides(target))


def is_view(node: torch.fx.Node) -> bool:
    """Whether an operator gives a view of its operand."""
    return isinstance(node.target, OpOverload) and node.target.is_view


def readers(node: torch.fx.Node) -> Iterator[torch.fx.Node]:
    """What uses a tensor or a view of it."""
    for user in node.users:
        yield from readers(user) if is_view(user) else (user,)


def is_stored_freely(node: torch.fx.Node) -> bool:
    """Whether Inductor computes a tensor, or what it is a view of, in loops: it stores that in the strides
    that an operator which reads it takes as stated."""
    from torch._inductor.lowering import fallbacks, lowerings

    while is_view(node):
        node = node.all_input_nodes[0]
    if node.target is operator.getitem:
        return is_stored_freely(node.all_input_nodes[0])
    fixed = node.target in (torch.ops.aten.cat.default, torch.ops.aten.empty_strided.default)
    loops = node.target in lowerings and node.target not in fallbacks and not fixed
    return loops and isinstance(node.target, OpOverload) and not has_kernel_of_its_own(node)


DONATED = "mixorder_donated"
"""Metadata of an input whose memory its graph may reuse."""


def mark_donated(graph: torch.fx.Graph, **kwargs: Any) -> tuple[tuple[int, bool], ...]:
    """Mark the inputs of a whole backward whose memory Inductor may reuse: activations that only the backward
    holds. `kwargs`: what the function gets that compiles the graph.

    Torch refuses to run such a backward twice. Those that share their memory with another input are left out,
    and all where a graph inside may: see `calls_graphs`.
    Returns what is donated, by index, and whether it is marked: the graph alone does not say so.
    """
    inputs = graph.find_nodes(op="placeholder")
    context = TracingContext.try_get()
    indices = getattr(getattr(context, "fw_metadata", None), "bw_donated_idxs", None) or ()
    count = Counter(map(get_node_storage, inputs))
    # The indices are of the backward, and are also known while the forward is compiled.
    whole = kwargs.get("is_backward") and not calls_graphs(graph)
    donated_indices = [i for i in indices if i < len(inputs)] if whole else []
    for i, node in enumerate(inputs):
        node.meta[DONATED] = i in donated_indices and count[get_node_storage(node)] == 1
    return tuple((i, inputs[i].meta[DONATED]) for i in donated_indices)


def donated(graph: torch.fx.Graph) -> frozenset[torch.fx.Node]:
    """The inputs that are marked as donated: none of a graph inside another, which may hold them."""
    return frozenset(n for n in graph.find_nodes(op="placeholder") if n.meta.get(DONATED))


def calls_graphs(graph: torch.fx.Graph) -> bool:
    """Whether a graph calls compiled regions inside it. Two results of such a region may be one tensor, such
    as what it returns and what it saves for its backward, and no metadata says so."""
    called = (target for n in graph.nodes if n.op == "call_function" for target in (n.target, *n.args))
    return any(isinstance(t, HigherOrderOperator) and t.name() == "invoke_subgraph" for t in called)


def may_overwrite_inputs() -> bool:
    """Whether a launch may write to donated inputs. Inductor makes no CUDA graph of a graph that writes to
    inputs, unless CUDA graphs made them. Where it chooses kernels of products by timing, a product that reads
    such an input after the launch may run before it: `Scheduler._replace_node` drops that dependence."""
    return not (config.triton.cudagraphs or config.max_autotune or config.max_autotune_gemm)


def overwritten(tensor: Any) -> Any:
    """In a graph, a donated input that a launch writes to: a value with memory of its own, so that Inductor's
    pass that puts mutations back in place does not copy it, as it does a graph's inputs."""
    return tensor


setattr(overwritten, "_inductor_lowering_function", True)  # noqa: B010  called in place of a lowering


def round_as_eager(node: torch.fx.Node) -> None:
    """Let Inductor's lowering of a node round its operands and its result to their half precision."""
    _mark(node, ROUNDED, "rounded")


def mark_two_masks(node: torch.fx.Node) -> None:
    """Let either operand of a node take its place: both are equal."""
    _mark(node, TWO_MASKS, "masks")


def contract_always(node: torch.fx.Node) -> None:
    """Let a sum be contracted with its product also in kernels that round the products of others."""
    _mark(node, CONTRACTED, "contracted")


def leave_to_inductor(node: torch.fx.Node) -> None:
    """Let no region have a node, in the forward and where the backward recomputes it."""
    _mark(node, RECOMPUTED, "again")


def _mark(node: torch.fx.Node, key: str, word: str) -> None:
    """Mark a node of a joint graph, for the graphs that it is divided into. The node's name says so too:
    caches of compiled graphs compare the code of graphs, not their metadata."""
    if not node.meta.get(key):
        node.meta[key] = True
        node._rename(f"{node.name}_{word}")


def is_recomputed(node: torch.fx.Node) -> bool:
    """Whether a node of a joint graph is checkpointed, so that the backward recomputes it if it needs the
    result and does not save it. What needs no gradient may be checkpointed as well, and has no backward."""
    recomputed = node.meta.get(RECOMPUTE) in (
        CheckpointPolicy.PREFER_RECOMPUTE,
        CheckpointPolicy.MUST_RECOMPUTE,
    )
    # AOTAutograd names the inputs of a graph without a backward so.
    return recomputed and not all(n.name.startswith("arg") for n in node.graph.find_nodes(op="placeholder"))


def may_be_saved(node: torch.fx.Node) -> bool:
    """Whether a node of a joint graph is checkpointed, and torch.compile may save its result all the same:
    a policy of `MUST_RECOMPUTE` forbids that."""
    return node.meta.get(RECOMPUTE) is CheckpointPolicy.PREFER_RECOMPUTE


def save_for_backward(node: torch.fx.Node) -> None:
    """Let the partitioner of a joint graph save what a node gives, instead of recomputing it."""
    several = isinstance(node.meta.get("val"), tuple)
    for saved in (node, *(node.users if several else ())):
        saved.meta[RECOMPUTE] = CheckpointPolicy.MUST_SAVE


def launch_arguments(
    kernel: Any, grid: tuple[int | torch.fx.Node, int, int], arguments: dict[str, Any], written: list[str]
) -> dict[str, Any]:
    """Keyword arguments of a `triton_kernel_wrapper_functional` node that launches a kernel. `arguments`:
    nodes by parameter name; `written`: the parameters that the kernel writes."""
    return {
        "kernel_idx": kernel_side_table.add_kernel(kernel),
        "constant_args_idx": kernel_side_table.add_constant_args({}),
        "grid": [grid],
        "tma_descriptor_metadata": {},
        "kwargs": arguments,
        "tensors_to_clone": written,
    }


def check_kernel(kernel: Any, arguments: dict[str, Any]) -> None:
    """Raise the error that Triton raises for a kernel with such arguments: see `mutation_cache.check`."""
    mutation_cache.check(triton_kernel_wrap, kernel, arguments)


def our_kernel(index: object) -> Any:
    """The function of a kernel of mixorder's by its number in a launch; None for any other kernel."""
    kernel = kernel_side_table.get_kernel(index) if isinstance(index, int) else None
    function = getattr(kernel, "fn", kernel)
    ours = str(getattr(function, "__name__", "")).startswith(mutation_cache.PREFIX)
    return function if ours else None


def launches_ours(node: torch.fx.Node) -> bool:
    """Whether a node launches a kernel of mixorder's."""
    return our_kernel(node.kwargs.get("kernel_idx")) is not None
