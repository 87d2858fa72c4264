"""Keeps the results of Inductor's own mix-order reductions right, in compiles with mixorder.

What mixorder leaves alone may become a kernel of Inductor's own fusion, whose programs add up the columns of
their rows. In some cases the result is wrong. The sum then gets what it lacks, or the pair is not fused:

- Lanes beyond the last row are summed too, with whatever a function makes of 0 or of memory that nobody wrote
  (pytorch/pytorch#195845): they are masked.
- Partial sums are float32: sums of integers and of float64 are not fused.
- The result is a tensor of its own, contiguous: what lies in another tensor (#193061), or not row by row, is
  not fused.
- With block pointers, or descriptors, a program reads its first tile over and over (#186241). Some versions
  lose the result's shape (#178080), or write a size `s0 + s1` without parentheses (#176375). Not fused.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

import sympy
import torch
import torch._inductor.config as config
import torch._inductor.ir as ir
from torch._inductor.loop_body import MemoryUsageType
from torch._inductor.virtualized import V

from ..errors import say_once
from . import versions
from .wrapping import wrap

SUMMED = frozenset({torch.float32, torch.bfloat16, torch.float16})

# Whether errors of what is here are raised; None in other compiles.
_strict: ContextVar[bool | None] = ContextVar("mixorder_keeps_mix_order_right", default=None)


@contextlib.contextmanager
def kept_right(strict: bool) -> Iterator[None]:
    """Keep them right in compiles of this context. What cannot be judged, as in an unknown version of torch,
    is not fused; `strict` raises the error."""
    from torch._inductor import scheduler
    from torch._inductor.codegen import triton

    wrap(scheduler, "MixOrderReduction.can_fuse", _if_right)
    wrap(scheduler, "FusedMixOrderReductions.sub_node_can_fuse", _if_right_sums_join)
    wrap(triton, "TritonKernel.partial_accumulate", _masked)
    token = _strict.set(strict)
    try:
        yield
    finally:
        _strict.reset(token)


def _masked(original: Callable[..., None]) -> Callable[..., None]:
    def partial_accumulate(kernel: Any, name: str, kind: str, value: Any, *args: Any) -> None:
        if _strict.get() is not None:
            identity: Any = ir.Reduction.default_accumulator(kind, torch.float)
            text, shape = f"tl.where(xmask, {value}, {float(identity)!r})", tuple(kernel.dense_size_list())
            value = kernel.cse.generate(kernel.compute, text, dtype=value.dtype, shape=shape)
        original(kernel, name, kind, value, *args)

    return partial_accumulate


def _if_right(original: Callable[..., bool]) -> Callable[..., bool]:
    def can_fuse(node1: Any, node2: Any) -> bool:
        return original(node1, node2) and _holds(_is_right_pair, node1, node2)

    return can_fuse


def _if_right_sums_join(original: Callable[..., bool]) -> Callable[..., bool]:
    def sub_node_can_fuse(pair: Any, node: Any, other: Any, *args: Any) -> bool:
        return original(pair, node, other, *args) and _holds(_may_join, pair, node, other)

    return sub_node_can_fuse


def _holds(check: Callable[..., bool], *nodes: Any) -> bool:
    try:
        return _strict.get() is None or check(*nodes)
    except Exception as error:
        if _strict.get():
            raise
        say_once(f"Inductor's own mix-order reduction is not used: {type(error).__name__}: {error}")
        return False


def _may_join(pair: Any, node: Any, other: Any) -> bool:
    """Whether a node of a pair stays right with another node in it."""
    return node is not _sums_over_rows(pair.node1, pair.node2) or all(map(_is_right, _reductions(other)))


def _is_right_pair(node1: Any, node2: Any) -> bool:
    """Whether a kernel of two nodes can be made, and is right."""
    if (node1.ancestors & node2.get_operation_names()) or (node2.ancestors & node1.get_operation_names()):
        return False
    over_rows = _sums_over_rows(node1, node2)
    if not _reads_each_tile() or versions.misprints(*_sizes(over_rows)):
        return False
    return all(map(_is_right, _reductions(over_rows)))


def _sums_over_rows(node1: Any, node2: Any) -> Any:
    """The node of a pair that sums over rows."""
    from torch._inductor.scheduler import MixOrderReduction

    return node2 if MixOrderReduction.is_contiguous_node(node1) else node1


def _reads_each_tile() -> bool:
    if config.triton.use_block_ptr:
        return False
    return not config.triton.use_tensor_descriptor or versions.advances_descriptors()


def _is_right(total: Any) -> bool:
    """Whether a sum over rows has the dtype, the shape, the order and the place in which it is read."""
    result = _result(total)
    if total.node.get_reduction_type() not in ("sum", "prod"):
        return False
    if result is None or not {total.node.data.src_dtype, result.get_dtype()} <= SUMMED:
        return False
    layout = result.get_layout()
    if type(layout) not in (ir.FixedLayout, ir.FlexibleLayout) or not layout.is_contiguous():
        return False
    if sum(size != 1 for size in layout.size) > 1 and not _runs_in_order(total):
        return False
    if versions.keeps_shape() or list(layout.size) == [_sizes(total)[0]]:
        return True
    V.graph.never_reuse_buffers.add(result.get_name())  # what takes its memory would take its shape
    return not _is_used_as_it_is(total, result)


def _runs_in_order(total: Any) -> bool:
    """Whether a sum's loops run through its columns in the order of a contiguous tensor."""
    body, buffer = total._body, total.node
    if buffer._split_size is not None:
        with buffer.with_original_inner_fn():
            _, body = buffer.simplify_and_reorder()
        buffer.get_default_sizes_body.clear_cache(buffer)
    (stored,) = body.memory_usage[MemoryUsageType.STORE_REDUCTION]
    strides = V.graph.sizevars.stride_vars(body.indexing_exprs[stored.index_name], body.iter_vars)
    return bool(ir.is_contiguous_strides_for_shape(strides, body.sizes[0]))


def _reductions(node: Any) -> list[Any]:
    return [one for one in node.get_nodes() if one.is_reduction()]


def _sizes(over_rows: Any) -> tuple[sympy.Expr, sympy.Expr]:
    """The columns and the rows of a sum over rows."""
    from torch._inductor.scheduler import MixOrderReduction

    return MixOrderReduction.get_numel_rnumel(over_rows)


def _result(total: Any) -> Any:
    """The buffer of a sum; if Inductor divides it, that of its parts' sum. None if there are several."""
    if total.node._split_size is None:
        return total.node
    users = total.get_outputs()[0].users
    return users[0].node.node if len(users) == 1 else None


def _is_used_as_it_is(total: Any, result: Any) -> bool:
    """Whether a buffer itself, no view of it, leaves the graph or goes into an operator that is no loop."""
    name = result.get_name()
    users = [user.node for user in total.scheduler.name_to_buf[name].users]
    if any(user.is_extern() or user.is_template() for user in users if user.get_name() != "OUTPUT"):
        return True
    given = [output.data if isinstance(output, ir.MutableBox) else output for output in V.graph.graph_outputs]
    return any(output.get_name() == name and not isinstance(output, ir.BaseView) for output in given)
