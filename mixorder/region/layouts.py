"""Layouts in memory: which ones Inductor is free to choose, and which the graph states.

The strides of a loop's result in the graph are those that eager would give it. Inductor stores it as suits
its loops, unless an operator that is no loop reads it: that gets the strides that the graph states.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterator
from typing import Any

import torch
from torch.fx import Node

from ..inductor.graphs import OpOverload, takes_any_strides, takes_stated_strides
from ..inductor.tensors import tracing, tree_leaves
from .gathers import COPIES, VIEWS, is_gather_view, is_split
from .nodes import fake, is_pair, is_view, leaves_the_graph, readers, shape_of, shows, size_of, unviewed
from .sizes import Size
from .space_analysis import takes_operands

aten = torch.ops.aten


def is_free(node: Node) -> bool:
    """Whether Inductor chooses how a tensor lies in memory: loops compute it, and only loops read it."""
    source = unviewed(node, _is_view)
    return _is_loop(source) and not is_read_as_stated(source)


def is_read_as_stated(node: Node) -> bool:
    """Whether something that is no loop reads a tensor or a view of it, such as a convolution or the graph's
    caller."""
    return not all(map(_is_loop, readers(node, _is_view)))


def has_stated_order(node: Node) -> bool:
    """Whether Inductor has to store a tensor in the order that the graph states: the graph's caller reads it,
    or an operator that takes the strides as stated. A matrix product does not."""
    return any(user.op == "output" or takes_stated_strides(user.target) for user in readers(node, _is_view))


def is_copied_as_stated(node: Node) -> bool:
    """Whether a copy in the strides that the graph states is made of a tensor that lies otherwise: for the
    graph's caller, or for an operator that takes them as stated, such as a launch of a kernel."""
    stated = (user for user in readers(node, _is_view) if user.op != "output")
    return leaves_the_graph(node) or any(takes_stated_strides(user.target) for user in stated)


def may_lie_otherwise(node: Node, strides: tuple[int, ...]) -> bool:
    """Whether the graph may state these strides of a tensor instead of others: its readers take them. A
    backward takes an activation in the strides that the forward was compiled to give it."""
    val = fake(node)
    assert val is not None
    with val.fake_mode:  # type: ignore[attr-defined]
        restrided = torch.empty_strided(val.shape, strides, dtype=val.dtype, device=val.device)
    try:
        read = list(readers_with(node, restrided))
    except (RuntimeError, ValueError):  # a view that would need a copy
        return False
    if val.stride() == strides or is_visible(node):
        return False
    return all(n.op == "output" or _is_loop(n) or takes_any_strides(n.target) for n in read)


def is_visible(node: Node) -> bool:
    """Whether the graph's caller, and not only its backward, gets a tensor or a view of it."""
    (output,) = node.graph.find_nodes(op="output")
    given = tree_leaves(output.args)
    seen = output.meta.get("user_visible_output_idxs", range(len(given)))
    returned = any(given[i] is node for i in seen)
    return returned or any(is_visible(user) for user in node.users if is_strided(user))


def readers_with(node: Node, val: torch.Tensor) -> Iterator[Node]:
    """The users of a node behind views and padding, if its value is `val`. Raises RuntimeError or ValueError
    for a view that these strides do not allow."""
    for user in node.users:
        if user.target is aten.constant_pad_nd.default:
            yield from user.users
        elif is_strided(user):
            yield from readers_with(user, _viewed(user, val))
        else:
            yield user


def follow(node: Node) -> None:
    """Give the views of a node, and what operators other than loops compute of it, the strides that follow
    from its own. Those of a loop's result do not: what reads it says how it is stored."""
    for user in followers(node):
        before, val = user.meta["val"], computed(user)
        if _shares(user) or not all(map(lie_alike, tree_leaves(before), tree_leaves(val))):
            user.meta["val"] = val
            follow(user)


def followers(node: Node) -> Iterator[Node]:
    """The users of a node whose strides follow from its own: all but loops, and what allocates by itself."""
    for user in node.users:
        is_own = takes_operands(user) or not isinstance(user.target, OpOverload)
        if _shares(user) or not (is_own or "unbacked_bindings" in user.meta):
            yield user


def _shares(node: Node) -> bool:
    """Whether a node shares memory with its operand, or takes one of several results."""
    return is_strided(node) or is_split(node) or node.target is operator.getitem


def computed(node: Node) -> Any:
    """What a node's operator gives of its operands' values as they are now."""
    args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
    mode = next(v.fake_mode for v in tree_leaves((args, kwargs)) if isinstance(v, torch.Tensor))  # type: ignore[attr-defined]
    with tracing(mode):
        return node.target(*args, **kwargs)  # type: ignore[operator]


def lie_alike(first: Any, second: Any) -> bool:
    """Whether two tensors of one shape have the same strides, but for those of dims of one element."""
    if not isinstance(first, torch.Tensor):
        return True
    dims = zip(first.shape, first.stride(), second.stride(), strict=True)
    return all(size_of(n) == 1 or size_of(a) == size_of(b) for n, a, b in dims)


def is_strided(node: Node) -> bool:
    """Whether a node is its operand, or a part of it, with other strides; a pair of results is not."""
    return (is_view(node) and not is_pair(node)) or node.target in VIEWS


def _viewed(view: Node, val: torch.Tensor) -> torch.Tensor:
    """The value of a view of `val`. Raises RuntimeError or ValueError where it would be a copy."""
    args = torch.fx.map_arg(view.args[1:], lambda n: n.meta["val"])
    with val.fake_mode:  # type: ignore[attr-defined]
        result: torch.Tensor = view.target(val, *args, **view.kwargs)  # type: ignore[operator]
        if result.untyped_storage()._cdata != val.untyped_storage()._cdata:
            raise RuntimeError("a view that is a copy")
    return result


def is_joined(node: Node, members: Collection[Node]) -> bool:
    """Whether a `cat` or another copy that is none of `members` takes a tensor or a view of it. Inductor's
    loops compute what they copy; the result of another kernel is reread."""
    return any(user.target in COPIES and user not in members for user in readers(node, _is_view))


def is_computed_by_loops(node: Node) -> bool:
    """Whether a loop, a reduction or a copy that Inductor fuses computes a tensor or what it is a view of."""
    return _is_loop(unviewed(node, _is_view))


def is_row_major(node: Node) -> bool:
    """Whether the graph states strides that put a node's elements in the order of its dims, without gaps."""
    val, shape = fake(node), shape_of(node)
    stride: Size = 1
    if val is None or shape is None:
        return False
    for size, stated in zip(reversed(shape), reversed(val.stride()), strict=True):
        if size != 1 and size_of(stated) != stride:
            return False
        stride = stride * size
    return True


def _is_loop(node: Node) -> bool:
    return takes_operands(node) or node.target in COPIES


def _is_view(node: Node) -> bool:
    return shows(node) or is_strided(node) or is_gather_view(node)
