"""Facts about one FX node: whether it is a reduction, pointwise or a view, and its size.

Takes nodes of a functional post-grad graph, changes nothing.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.fx import Node

from ..inductor.graphs import RECOMPUTED, is_lowered_pointwise, is_recomputed, prepare_softmax_online
from ..inductor.symbols import depends_on_data, once_a_graph
from ..inductor.tensors import is_symbolic
from ..ir.dtypes import FLOAT8
from ..ir.reductions import AMAX, AMIN, SUM, XOR, ReductionKind
from .axes import Reduced
from .sizes import Size, plain

aten = torch.ops.aten
prims = torch.ops.prims

REDUCTIONS: dict[object, ReductionKind] = {
    aten.sum.default: SUM,
    aten.sum.dim_IntList: SUM,
    aten.mean.dim: SUM,
    aten.amax.default: AMAX,
    aten.amin.default: AMIN,
    aten.var.correction: SUM,
    prims.xor_sum.default: XOR,
}
MOMENTS = aten.var_mean.correction  # gives a pair; each `getitem` counts as a reduction of the operand
SOFTMAX = prepare_softmax_online  # likewise: the largest elements, and sums of exponentials relative to them
EXTREMA = {aten.max.dim: AMAX, aten.min.dim: AMIN}  # values and indices; only the values are a reduction

VIEWS = frozenset(
    {
        aten.view.default,
        aten.reshape.default,
        aten._unsafe_view.default,
        aten.unsqueeze.default,
        aten.squeeze.dim,
        aten.squeeze.dims,
        aten.squeeze.default,
        aten.expand.default,
    }
)

CONSTANTS = frozenset({aten.full.default, aten.scalar_tensor.default, prims.iota.default})

_NUMBER = (torch.SymInt, torch.SymFloat, int)

FLOATS = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})


def is_readable_dtype(dtype: torch.dtype) -> bool:
    return dtype in FLOATS or not (dtype.is_floating_point or dtype.is_complex)


def is_writable_dtype(dtype: torch.dtype) -> bool:
    return dtype in FLOAT8 or is_readable_dtype(dtype)


def fake(node: Node) -> torch.Tensor | None:
    """The fake tensor that a node produces, None if it does not produce exactly one tensor.

    A pair of results counts as a view of its operand, which its `getitem`s reduce.
    """
    val = node.meta.get("val")
    if not isinstance(val, torch.Tensor) and is_pair(node):
        val = node.args[0].meta.get("val")  # type: ignore[union-attr]
    return val if isinstance(val, torch.Tensor) else None


def is_pair(node: Node) -> bool:
    """Whether a node gives two tensors, and all that are used count as reductions of its operand."""
    if node.target in EXTREMA:
        return all(user.target is operator.getitem and user.args[1] == 0 for user in node.users)
    return node.target in (MOMENTS, SOFTMAX)


def float_bytes(node: Node) -> int:
    """Bytes of an element; 0 where the node is not one tensor of floating-point numbers."""
    val = fake(node)
    return val.dtype.itemsize if val is not None and val.dtype.is_floating_point else 0


def size_of(n: int | torch.SymInt) -> Size:
    """A size or stride: an int, or the sympy expression of a symbolic one."""
    return n if isinstance(n, int) else plain(n.node.expr)


def shape_of(node: Node) -> tuple[Size, ...] | None:
    """The shape of a node that gives one tensor, None for any other and for data-dependent sizes."""
    val = fake(node)
    if val is None:
        return None
    return once_a_graph(val, lambda: _shape(val)) if is_symbolic(val) else tuple(val.shape)


def _shape(val: torch.Tensor) -> tuple[Size, ...] | None:
    shape = tuple(map(size_of, val.shape))
    symbolic = [n for n in (*shape, *map(size_of, val.stride())) if not isinstance(n, int)]
    return None if any(depends_on_data(s) for n in symbolic for s in n.free_symbols) else shape


def operands(node: Node) -> list[Node]:
    """The nodes that a node computes with, other than symbolic numbers."""
    return [arg for arg in node.all_input_nodes if not isinstance(arg.meta.get("val"), _NUMBER)]


def argument(node: Node, place: int, name: str, default: Any = None) -> Any:
    """An argument of a node, given by place or by name."""
    return node.args[place] if len(node.args) > place else node.kwargs.get(name, default)


def is_view(node: Node) -> bool:
    return node.op == "call_function" and (node.target in VIEWS or is_pair(node))


def is_permutation(node: Node) -> bool:
    return node.op == "call_function" and node.target is aten.permute.default


def shows(node: Node) -> bool:
    """Whether a node moves no element, so that a loop computes its operand as well."""
    return is_view(node) or is_permutation(node)


def unviewed(node: Node, is_view: Callable[[Node], bool] = is_view) -> Node:
    """The tensor that a view is of, through all views in between; any other node itself."""
    while is_view(node) and (args := operands(node)):
        node = args[0]
    return node


def readers(node: Node, is_view: Callable[[Node], bool] = is_view) -> Iterator[Node]:
    """What uses a tensor or a view of it."""
    for user in node.users:
        if is_view(user):
            yield from readers(user, is_view)
        else:
            yield user


def leaves_the_graph(node: Node) -> bool:
    """Whether the graph's caller gets the tensor or a view of it, and so its strides."""
    return any(user.op == "output" for user in readers(node))


def is_constant(node: Node) -> bool:
    """Whether a tensor is computed from numbers alone, so that a kernel need not read it."""
    return node.op == "call_function" and node.target in CONSTANTS and not operands(node)


def is_pointwise(node: Node) -> bool:
    if node.op != "call_function":
        return False
    return is_lowered_pointwise(node.target) or is_bit_view(node) or is_masked_write(node)


def is_masked_write(node: Node) -> bool:
    """Whether a node writes one value wherever a mask of its operand's shape is true: `x[x.isnan()] = 0`."""
    if node.target is not aten.index_put.default or len(node.args) != 3:
        return False
    x, indices, value = node.args
    if len(indices) != 1 or not all(isinstance(n, Node) for n in (x, indices[0], value)):  # type: ignore[arg-type,index]
        return False
    whole, mask, scalar = fake(x), fake(indices[0]), fake(value)  # type: ignore[arg-type,index]
    if whole is None or mask is None or scalar is None or mask.dtype != torch.bool or scalar.ndim:
        return False
    return mask.shape == whole.shape and scalar.dtype == whole.dtype


def is_bit_view(node: Node) -> bool:
    """Whether a node gives the bits of each element as another dtype of the same size."""
    source = node.args[0] if node.target is aten.view.dtype else None
    if not isinstance(source, Node):
        return False
    val, source_val = fake(node), fake(source)
    return val is not None and source_val is not None and source_val.dtype.itemsize == val.dtype.itemsize


def reduction_kind(node: Node) -> ReductionKind | None:
    if node.target is not operator.getitem:
        return REDUCTIONS.get(node.target) if node.op == "call_function" else None
    if is_moment(node):
        return SUM
    if _is_of_softmax(node):
        return SUM if is_relative_sum(node) else AMAX
    return EXTREMA[node.args[0].target] if _is_extremum(node) else None  # type: ignore[union-attr,index]


def has_accumulator(node: Node) -> bool:
    """Whether a reduction takes the dtype of its result; true of a node that is no reduction."""
    kind, val = reduction_kind(node), node.meta.get("val")
    try:
        return kind is None or (isinstance(val, torch.Tensor) and bool(kind.accumulates_in(val.dtype)))
    except ValueError:
        return False


def is_moment(node: Node) -> bool:
    """Whether a node is the variance (0) or the mean (1) of a pair of moments."""
    return node.target is operator.getitem and getattr(node.args[0], "target", None) is MOMENTS


def _is_of_softmax(node: Node) -> bool:
    return node.target is operator.getitem and getattr(node.args[0], "target", None) is SOFTMAX


def is_relative_sum(node: Node) -> bool:
    """Whether a node is the sums of exponentials relative to the largest elements, of a softmax."""
    return _is_of_softmax(node) and node.args[1] == 1


def is_relative(node: Node) -> bool:
    """Whether a reduction is of what is relative to another one of the same elements."""
    return is_variance(node) or is_relative_sum(node)


def _is_extremum(node: Node) -> bool:
    """Whether a node is the values of a maximum or minimum whose indices are not used."""
    if node.target is not operator.getitem or not isinstance(node.args[0], Node):
        return False
    return node.args[0].target in EXTREMA and is_pair(node.args[0])


def is_mean(node: Node) -> bool:
    return node.target is aten.mean.dim or (is_moment(node) and node.args[1] == 1)


def is_variance(node: Node) -> bool:
    return node.target is aten.var.correction or (is_moment(node) and node.args[1] == 0)


def correction(node: Node) -> float:
    """The difference between the number of elements and a variance's divisor."""
    given = stated_by(node).kwargs.get("correction")
    return 1 if given is None else given  # type: ignore[return-value]


def stated_by(node: Node) -> Node:
    """The node that has a reduction's arguments: for one of a pair, the pair."""
    return node.args[0] if node.target is operator.getitem else node  # type: ignore[return-value]


def reduced_dims(node: Node) -> tuple[int, ...]:
    """The dims that a reduction node reduces, non-negative and sorted; all of them if none are given."""
    ndim = fake(node.args[0]).dim()  # type: ignore[arg-type,union-attr]
    node = stated_by(node)
    dims = argument(node, 1, "dim")
    if dims is None or dims == []:
        return tuple(range(ndim))
    dims = [dims] if isinstance(dims, int) else dims
    return tuple(sorted(d % ndim for d in dims))


def keeps_dims(node: Node) -> bool:
    node = stated_by(node)
    if node.target is SOFTMAX:
        return True
    return bool(argument(node, 2, "keepdim"))


def reduced(node: Node) -> Reduced | None:
    """What a reduction node reduces; None for any other node, for integers and bools, a source of
    data-dependent size, and a sum that is left to Inductor, as its bits have to be those of another graph."""
    if reduction_kind(node) is None or not isinstance(node.args[0], Node) or _has_bits_of_another(node):
        return None
    val = fake(node)
    if val is None or (is_readable_dtype(val.dtype) and not has_accumulator(node)):
        return None
    shape = shape_of(node.args[0])
    return None if shape is None else Reduced(shape, reduced_dims(node))


def _has_bits_of_another(node: Node) -> bool:
    """Whether a sum is computed in the forward and again in the backward. Inductor's pass that makes the sums
    of a softmax keeps their policy of checkpointing, and no other metadata."""
    return bool(node.meta.get(RECOMPUTED)) or (is_relative_sum(node) and is_recomputed(node))


def is_added_up(node: Node) -> bool:
    """Whether all that uses a node reduces all its elements to one."""
    return all((what := reduced(u)) is not None and len(what.dims) == len(what.shape) for u in node.users)


def reduced_tensor(node: Node) -> Node:
    """The tensor that a reduction reduces a view of."""
    return unviewed((operands(node) or [node])[0])
