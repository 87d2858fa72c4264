"""Cuts a subgraph out of a post-grad graph, as an entry of the corpus, or takes the whole graph.

In: nodes of the graph, by what mixorder found. Out: `Cut`s or dicts, plain data. Changes nothing.
"""

from __future__ import annotations

import dataclasses
import json
import operator
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._inductor.fx_utils import get_node_storage, get_storage
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import Graph, Node
from torch.utils._sympy.printers import PythonPrinter

from lab.corpus import MARKS, VISIBLE, Input
from mixorder.region.nodes import is_constant, is_pointwise, is_view, operands, reduction_kind
from mixorder.region.region import Region
from mixorder.region.walk import by_position

aten = torch.ops.aten
prims = torch.ops.prims

LAYOUTS = frozenset(
    {
        aten.permute.default,
        aten.clone.default,
        aten.alias.default,
        aten.slice.Tensor,
        aten.select.int,
        aten.as_strided.default,
    }
)
ABOVE_ZERO = frozenset(
    {
        *(
            aten.rsqrt.default,
            aten.sqrt.default,
            aten.log.default,
            aten.log1p.default,
            aten.reciprocal.default,
        ),
        *(aten.pow.Tensor_Scalar, aten.pow.Tensor_Tensor),
    }
)
DIVISIONS = frozenset({aten.div.Tensor, aten.div.Tensor_mode})
THROUGH = frozenset(
    {prims.convert_element_type.default, aten.permute.default, aten.clone.default, aten.slice.Tensor}
)
OF_SEVERAL = frozenset(
    {
        *(aten.var_mean.correction, aten.max.dim, aten.min.dim),
        *(aten.split.Tensor, aten.split_with_sizes.default, aten.unbind.int),
    }
)
SYMBOL = re.compile(r"\b[su]\d+\b")
SMALL_BOUND = 8  # what integers are drawn below where the subgraph gathers nothing by them
MOST_NODES = 200  # of a near miss


class NotKept(Exception):
    """A subgraph that an entry cannot hold; the message says why."""


@dataclasses.dataclass(frozen=True)
class Cut:
    """A subgraph as an entry holds it, see `corpus.Entry`."""

    inputs: list[Input]
    nodes: list[list[Any]]
    outputs: list[int]
    inner: list[int]
    outer: list[int]


def of_region(region: Region) -> Cut:
    """The region's nodes, and the views and copies behind its results. Raises `NotKept`."""
    return cut(region.nodes, region.outputs, region.inner, region.outer)


def of_miss(inner: Collection[Node], outer: Collection[Node]) -> Cut:
    """Reductions with what is pointwise above and below them, up to tensors that an operator reads that is no
    loop: these are written anyway. Raises `NotKept`."""
    pair = by_position({*inner, *outer})
    below = _reached(pair, lambda n: [] if _is_written(n) else [u for u in n.users if not reduction_kind(u)])
    members = _reached(by_position(below), lambda n: [a for a in operands(n) if not _is_written(a)])
    nodes = by_position(members)
    results = [n for n in nodes if any(user not in members for user in n.users)]
    return cut(nodes, results, inner, outer)


def _reached(pair: Sequence[Node], following: Callable[[Node], list[Node]]) -> set[Node]:
    """The reductions, and the pointwise nodes that follow them, nearest first and at most `MOST_NODES`."""
    todo = list(pair)
    for node in todo:
        followers = [
            follower
            for follower in dict.fromkeys(following(node))
            if _joins(follower) and follower not in todo
        ]
        todo.extend(followers[: max(0, MOST_NODES - len(todo))])
    return set(todo)


def _is_written(node: Node) -> bool:
    """Whether an operator reads a node, itself or a view of it, that is no loop; it is in memory, then."""
    for user in node.users:
        if user.op == "output" or not (_joins(user) or reduction_kind(user)):
            return True
        if (is_view(user) or user.target in LAYOUTS) and _is_written(user):
            return True
    return False


def _joins(node: Node) -> bool:
    return is_pointwise(node) or is_view(node) or is_constant(node) or node.target in LAYOUTS


def cut(
    members: Iterable[Node], results: Iterable[Node], inner: Iterable[Node], outer: Iterable[Node]
) -> Cut:
    """A subgraph of some members, of which `results` are needed outside. Raises `NotKept`."""
    nodes = _whole(set(members))
    ends = _extended(nodes, results)
    nodes = by_position(nodes)
    inside = set(nodes)
    reads = dict.fromkeys(a for n in nodes for a in operands(n) if a not in inside)
    number = {node: i for i, node in enumerate((*reads, *nodes))}
    lines = [[target(n), argument(list(n.args), number), argument(dict(n.kwargs), number)] for n in nodes]
    inputs, lines = _renamed([_input(n, inside) for n in reads], lines)
    return Cut(
        inputs,
        lines,
        [number[n] for n in ends],
        [number[n] for n in inner if n in number],
        [number[n] for n in outer if n in number],
    )


def _renamed(inputs: list[Input], nodes: list[list[Any]]) -> tuple[list[Input], list[list[Any]]]:
    """The same with symbols numbered as they occur, so that equal structures have equal text."""
    names: dict[str, str] = {}
    text = json.dumps([[dataclasses.asdict(tensor) for tensor in inputs], nodes])
    text = SYMBOL.sub(lambda match: names.setdefault(match[0], f"s{len(names)}"), text)
    plain, nodes = json.loads(text)
    return [Input(**tensor) for tensor in plain], nodes


def _whole(members: set[Node]) -> set[Node]:
    """The members, and the nodes that give several tensors of which a member is one. The results of a library
    are inputs."""
    for node in list(members):
        if node.target is operator.getitem:
            source = node.args[0]
            assert isinstance(source, Node)
            if source.target in OF_SEVERAL and all(
                isinstance(a.meta.get("val"), Tensor) for a in operands(source)
            ):
                members.add(source)
            else:
                members -= {node, source}
    return members


def _extended(nodes: set[Node], results: Iterable[Node]) -> list[Node]:
    """Add the views and copies that follow the results to `nodes`. Returns what is then needed outside."""
    ends = []
    todo = [r for r in results if r in nodes and isinstance(r.meta.get("val"), Tensor)]
    for node in todo:
        users = [u for u in node.users if u not in nodes]
        behind = [u for u in users if (is_view(u) or u.target in LAYOUTS) and set(operands(u)) <= {node}]
        for user in behind:
            nodes.add(user)
            todo.append(user)
        if len(behind) < len(users) or not users:
            ends.append(node)
    return list(dict.fromkeys(ends))


def target(node: Node) -> str:
    """The name of what a node calls, see `corpus.target_of`. Raises `NotKept`."""
    if node.target is operator.getitem:
        return "getitem"
    if isinstance(node.target, torch._ops.OpOverload):
        return str(node.target)
    if isinstance(node.target, torch._ops.HigherOrderOperator):
        return f"higher_order.{node.target.name()}"
    module, name = (getattr(node.target, part, "") for part in ("__module__", "__name__"))
    if module in ("_operator", "math", "torch") and callable(node.target):
        return f"{module.strip('_')}.{name}"
    raise NotKept(f"the operator {node.target}")


def argument(value: Any, number: dict[Node, int]) -> Any:
    """An argument as JSON: lists, plain values, and `{kind: value}` for all others."""
    if isinstance(value, Node):
        if value in number:
            return {"node": number[value]}
        return argument(value.meta.get("val"), number)
    if isinstance(value, torch.SymInt):
        return {"$": [str(value.node.expr), _hint(value)]}
    if isinstance(value, list | tuple):
        return [argument(item, number) for item in value]
    if isinstance(value, dict):
        return {"kwargs": {name: argument(item, number) for name, item in value.items()}}
    if isinstance(value, float) and (value != value or value in (float("inf"), -float("inf"))):
        return {"float": str(value)}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, torch.dtype | torch.layout | torch.memory_format):
        return {"torch": str(value).removeprefix("torch.")}
    if isinstance(value, torch.device):
        return {"device": value.type}
    if isinstance(value, torch._ops.OpOverload):
        return {"operator": str(value)}
    raise NotKept(f"an argument of type {type(value).__name__}")


def _hint(size: int | torch.SymInt) -> int:
    """A size as it was in the run that was traced."""
    if isinstance(size, int):
        return size
    return int(size.node.hint)


def _input(node: Node, inside: set[Node]) -> Input:
    val = node.meta.get("val")
    if not isinstance(val, Tensor):
        raise NotKept(f"an input that is no tensor: {node.target}")
    sizes = [list(val.shape), list(val.stride())]
    stated = [[n if isinstance(n, int) else str(n.node.expr) for n in part] for part in sizes]
    hints = [[_hint(n) for n in part] for part in sizes]
    whole = not val.dtype.is_floating_point and val.dtype is not torch.bool
    name = str(val.dtype).removeprefix("torch.")
    bound = _bound(node, inside) if whole else 0
    return Input(name, *stated, hints, bound, _is_positive(node, inside), _is_left_behind(node, inside))  # type: ignore[arg-type]


def _readers(node: Node, inside: set[Node], through: Callable[[Node], bool]) -> Iterable[tuple[Node, Node]]:
    """(tensor, reader): the nodes of the subgraph that read a node, also through views, casts and so on."""
    todo = [node]
    for tensor in todo:
        for user in tensor.users:
            if user in inside:
                yield tensor, user
                if through(user) and user not in todo:
                    todo.append(user)


def _bound(node: Node, inside: set[Node]) -> int:
    """The least size of a dim that a gather of the subgraph indexes by the node."""
    bounds = []
    for index, reader in _readers(node, inside, lambda n: is_view(n) or is_pointwise(n)):
        source = reader.args[0]
        val = source.meta.get("val") if isinstance(source, Node) else None
        if not isinstance(val, Tensor):
            continue
        if reader.target is aten.embedding.default and reader.args[1] is index:
            bounds.append(_hint(val.shape[0]))
        if reader.target in (aten.index.Tensor, aten._unsafe_index.Tensor, aten.index_put.default):
            places = reader.args[1]
            bounds += [_hint(val.shape[i]) for i, at in enumerate(places) if at is index]  # type: ignore[arg-type]
        if reader.target in (
            aten.gather.default,
            aten.scatter.value,
            aten.scatter.src,
            aten.scatter_add.default,
        ):
            bounds.append(_hint(val.shape[reader.args[1]]))  # type: ignore[index]
    return max(1, min(bounds, default=SMALL_BOUND))


def _is_positive(node: Node, inside: set[Node]) -> bool:
    """Whether the subgraph takes a root, a logarithm or a power of a tensor, or divides by it."""
    for tensor, reader in _readers(
        node, inside, lambda n: is_view(n) or n.target in THROUGH or _adds_number(n)
    ):
        if (reader.target in ABOVE_ZERO and not _is_whole_power(reader)) or (
            reader.target in DIVISIONS and reader.args[1] is tensor
        ):
            return True
    return False


def _is_whole_power(node: Node) -> bool:
    """Whether a node is a power that every number has."""
    return node.target is aten.pow.Tensor_Scalar and node.args[1] in (0, 1, 2, 3, 4)


def _adds_number(node: Node) -> bool:
    return node.target is aten.add.Tensor and not isinstance(node.args[1], Node)


def _is_left_behind(node: Node, inside: set[Node]) -> bool:
    """Whether a tensor is on the CPU and the subgraph's other tensors are not."""
    devices = {val.device.type for n in inside if isinstance(val := n.meta.get("val"), Tensor)}
    return node.meta["val"].device.type == "cpu" and "cpu" not in devices


# Whole graphs.


def whole(graph: Graph) -> dict[str, Any]:
    """A graph as lists and texts. `symbols`: hint and range of each. `guards`: expressions that are true.
    `values`: each distinct dtype, shape, stride and offset. `nodes`: target, arguments, the number of the
    value, and of the node in whose memory it lies, or of those in whose memory each of several lies; of
    inputs, the name takes the arguments' place. Raises `NotKept`."""
    number = {node: i for i, node in enumerate(graph.nodes)}
    owner: dict[Any, Node] = {}
    values: dict[str, int] = {}
    symbols: set[Any] = set()
    nodes = []

    def text(size: Any) -> int | str:
        if isinstance(size, int):
            return size
        symbols.update(size.node.expr.free_symbols)
        return int(size) if size.node.expr.is_Integer else PythonPrinter().doprint(size.node.expr)

    def value(val: Any) -> Any:
        if isinstance(val, Tensor):
            sizes = [[*map(text, part)] for part in (val.shape, val.stride(), (val.storage_offset(),))]
            return [str(val.dtype).removeprefix("torch."), *sizes]
        if isinstance(val, torch.SymInt | torch.SymFloat):
            return {"$": text(val)}
        if isinstance(val, list | tuple):
            return [[*map(value, val)]]
        if isinstance(val, int | float):
            return val
        if val is None or isinstance(val, torch.Generator):
            return None
        raise NotKept(f"a value of type {type(val).__name__}")

    def memory(node: Node) -> Any:
        """The number of the node in whose memory a node's value lies; of several values, the numbers."""
        val = node.meta.get("val")
        if isinstance(val, list | tuple):
            known = (owner.get(get_storage(v)) if isinstance(v, Tensor) else None for v in val)
            numbers = [None if holder is None else number[holder] for holder in known]
            return numbers if any(n is not None for n in numbers) else None
        storage = get_node_storage(node)
        holder = owner.setdefault(storage, node) if storage is not None else node
        return None if holder is node else number[holder]

    for node in graph.nodes:
        if node.op == "output":
            outputs = argument(list(node.args[0]), number), node.meta.get(VISIBLE)
            break
        if node.op not in ("placeholder", "call_function"):
            raise NotKept(f"a node of kind {node.op}")
        call = [node.name] if node.op == "placeholder" else [target(node), argument(list(node.args), number)]
        call += [argument(dict(node.kwargs), number)] if node.kwargs else []
        lies = memory(node)
        if node.target is operator.getitem:  # its source has the value
            stated, lies = json.dumps(None), None
        else:
            stated = json.dumps(value(node.meta.get("val")))
        marks = [mark for mark in MARKS if node.meta.get(mark)]
        nodes.append([call, values.setdefault(stated, len(values)), lies, *marks])
    guards, ranges = _guards(graph, symbols)
    return {
        "symbols": ranges,
        "guards": guards,
        "values": [json.loads(line) for line in values],
        "nodes": nodes,
        "outputs": outputs,
    }


def _guards(graph: Graph, symbols: set[Any]) -> tuple[list[str], dict[str, list[int]]]:
    """What torch has found out of the symbols: expressions that are true; the hints, and ranges."""
    if not symbols:
        return [], {}
    vals = (n.meta.get("val") for n in graph.nodes)
    shape_env = next(v.fake_mode.shape_env for v in vals if isinstance(v, FakeTensor))
    ranges = {}
    for symbol in sorted(symbols, key=str):
        if symbol not in shape_env.backed_var_to_val:
            raise NotKept("a size that depends on data")
        bounds = shape_env.var_to_range[symbol]
        most = int(bounds.upper) if bounds.upper.is_number and bounds.upper < 2**40 else None
        ranges[str(symbol)] = [int(shape_env.backed_var_to_val[symbol]), int(bounds.lower), most]
    known = (guard.expr for guard in shape_env.guards)
    printed = [PythonPrinter().doprint(expr) for expr in known if expr.free_symbols <= symbols]
    return list(dict.fromkeys(printed)), ranges
