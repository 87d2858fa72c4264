"""A corpus of subgraphs of real training: what it holds, how it is stored, and how an entry runs again.

An entry is a subgraph of a post-grad graph: a region, or a pair of reductions that was declined, with the
views and copies that follow its results. It needs no model package to run. Files hold one entry per line as
JSON, compressed by the file's ending (`.xz`, `.gz`).

A whole graph is a dict (`subgraphs.whole`), and keeps its symbolic sizes, the memory in which views lie, and
calls of libraries. Values are as they were stated: nothing is propagated.
"""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import json
import lzma
import math
import operator
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TextIO

import torch
from torch import Tensor
from torch._dynamo.source import ConstantSource
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx import Graph, GraphModule
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv
from torch.utils._sympy.numbers import int_oo


@dataclasses.dataclass(frozen=True)
class Input:
    """A tensor that a subgraph reads. `shape`, `stride`: ints, or expressions of symbols as text. `hint`:
    shape and stride as ints. `bound`: integers drawn for it are below it. `positive`: it is drawn from 0.5 to
    1.5. `on_cpu`: it is a number that stays on the CPU."""

    dtype: str
    shape: list[int | str]
    stride: list[int | str]
    hint: list[list[int]]
    bound: int = 0
    positive: bool = False
    on_cpu: bool = False

    def draw(self, device: str, generator: torch.Generator) -> Tensor:
        """A random tensor with the input's sizes and strides; dims of stride 0 are expanded."""
        shape, stride = self.hint
        dtype = getattr(torch, self.dtype)
        extent = 1 + sum((n - 1) * s for n, s in zip(shape, stride, strict=True)) if all(shape) else 0
        if dtype is torch.bool:
            flat = torch.rand(extent, device=device, generator=generator) < 0.5
        elif not dtype.is_floating_point:
            high = max(1, min(self.bound, torch.iinfo(dtype).max))
            flat = torch.randint(high, (extent,), device=device, generator=generator).to(dtype)
        elif self.positive:
            flat = torch.rand(extent, device=device, generator=generator).add_(0.5).to(dtype)
        else:
            flat = torch.randn(extent, device=device, generator=generator).to(dtype)
        return flat.as_strided(shape, stride)


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a subgraph occurs: a family's recipe, its forward or backward, and how often there."""

    family: str
    recipe: str
    kind: str
    count: int


@dataclasses.dataclass(frozen=True)
class Entry:
    """One structure. `nodes`: `[target, args, kwargs]` in order, see `decoded`.
    `outputs`: numbers of nodes, after the inputs. `outcome`: `fused`, `part` (a smaller region was fused), or
    the reason of the decline; `detail` says more. `inner`, `outer`: numbers of the reductions."""

    key: str
    inputs: list[Input]
    nodes: list[list[Any]]
    outputs: list[int]
    inner: list[int]
    outer: list[int]
    outcome: str
    detail: str
    places: list[Place]

    @property
    def count(self) -> int:
        """How often it occurs, over all places."""
        return sum(place.count for place in self.places)

    @property
    def dynamic(self) -> bool:
        """Whether a size was symbolic. `module` has the hints in its place."""
        return any(isinstance(n, str) for i in self.inputs for n in (*i.shape, *i.stride)) or "$" in str(
            self.nodes
        )

    def module(self, device: str = "cuda") -> GraphModule:
        """The subgraph with static sizes. It takes the inputs in order and gives a tuple of the outputs."""
        graph = Graph()
        values: list[Any] = [graph.placeholder(f"in{i}") for i in range(len(self.inputs))]
        for target, args, kwargs in self.nodes:
            call = target_of(target)
            arguments = decoded(args, values, device), decoded(kwargs, values, device)
            values.append(graph.call_function(call, tuple(arguments[0]), arguments[1]))
        graph.output(tuple(values[i] for i in self.outputs))
        return GraphModule(torch.nn.Module(), graph)

    def tensors(self, device: str = "cuda", seed: int = 0) -> list[Tensor]:
        """Fresh random tensors for `module`, the same for the same seed and device."""
        generator = torch.Generator(device).manual_seed(seed)
        drawn = [tensor.draw(device, generator) for tensor in self.inputs]
        return [x.cpu() if tensor.on_cpu else x for x, tensor in zip(drawn, self.inputs, strict=True)]


def target_of(name: str) -> Callable[..., Any]:
    """The function of a node's target, such as `aten.mul.Tensor`, `getitem` or `operator.add`."""
    if name == "getitem":
        return operator.getitem
    if name.count(".") == 1:
        module, function = name.split(".")
        modules = {"operator": operator, "math": math, "torch": torch, "higher_order": torch.ops.higher_order}
        return getattr(modules[module], function)  # type: ignore[no-any-return]
    namespace, operation, overload = name.split(".")
    return getattr(getattr(getattr(torch.ops, namespace), operation), overload)  # type: ignore[no-any-return]


def decoded(value: Any, values: list[Any], device: str) -> Any:
    """An argument as `lab.subgraphs` writes it: lists, plain values, and `{kind: value}` for all others."""
    if isinstance(value, list):
        return [decoded(item, values, device) for item in value]
    if not isinstance(value, dict):
        return value
    if "kwargs" in value:
        return {name: decoded(item, values, device) for name, item in value["kwargs"].items()}
    (kind, content), *_ = value.items()
    if kind == "node":
        return values[content]
    if kind == "$":
        return content[1]
    if kind == "device":
        return torch.device(content if content == "cpu" else device)
    if kind == "operator":
        return target_of(content)
    if kind == "float":
        return float(content)
    return getattr(torch, content)


def structural_key(inputs: list[Input], nodes: list[list[Any]], outputs: list[int]) -> str:
    """A hash of all but the names."""
    plain = [[dataclasses.asdict(tensor) for tensor in inputs], nodes, outputs]
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:16]


def from_dict(plain: dict[str, Any]) -> Entry:
    """The entry of a line."""
    parts = {
        "inputs": [Input(**tensor) for tensor in plain["inputs"]],
        "places": [Place(**place) for place in plain["places"]],
    }
    return Entry(**{**plain, **parts})


def load(path: str | Path) -> list[Entry]:
    """The entries of a file."""
    with _opened(Path(path), "rt") as lines:
        return [from_dict(json.loads(line)) for line in lines]


def save(path: str | Path, entries: Iterable[Entry]) -> None:
    """Write entries to a file, which then is the same for the same entries."""
    with _opened(Path(path), "wt") as lines:
        for entry in entries:
            print(json.dumps(dataclasses.asdict(entry), separators=(",", ":")), file=lines)


def _opened(path: Path, mode: str) -> TextIO:
    if path.suffix == ".xz":
        return lzma.open(path, mode)  # type: ignore[return-value]
    if path.suffix == ".gz":
        return gzip.open(path, mode)  # type: ignore[return-value]
    return path.open(mode.removesuffix("t"))  # type: ignore[return-value]


def merged(entries: Iterable[Entry]) -> list[Entry]:
    """One entry per key, with all places; those that occur most come first."""
    by_key: dict[str, Entry] = {}
    for entry in entries:
        known = by_key.get(entry.key)
        places = [*known.places, *entry.places] if known else entry.places
        by_key[entry.key] = dataclasses.replace(known or entry, places=_summed(places))
    return sorted(by_key.values(), key=lambda entry: (-entry.count, entry.key))


def _summed(places: Iterable[Place]) -> list[Place]:
    counts: dict[tuple[str, str, str], int] = {}
    for place in places:
        key = place.family, place.recipe, place.kind
        counts[key] = counts.get(key, 0) + place.count
    return [Place(*key, count) for key, count in counts.items()]


# Whole graphs.

MARKS = ("mixorder_donated", "mixorder_masks", "mixorder_again", "low_precision_pointwise_barrier")
"""Metadata of nodes that the pass reads."""
VISIBLE = "user_visible_output_idxs"


def graphs(path: str | Path) -> dict[str, dict[str, Any]]:
    """The whole graphs of a file by name."""
    with _opened(Path(path), "rt") as lines:
        return {graph.pop("name"): graph for graph in map(json.loads, lines)}


def save_graphs(path: str | Path, traced_graphs: dict[str, dict[str, Any]]) -> None:
    with _opened(Path(path), "wt") as lines:
        for name, graph in traced_graphs.items():
            print(json.dumps({"name": name, **graph}, separators=(",", ":")), file=lines)


def restored(stored: dict[str, Any]) -> Graph:
    """The graph of what `subgraphs.whole` gave, on fake tensors of a CPU."""
    values, graph = _Values(stored), Graph()
    nodes: list[Any] = []
    for (name, *call), stated, memory, *marks in stored["nodes"]:
        if call:
            args, kwargs = (decoded(part, nodes, "cpu") for part in (*call, {"kwargs": {}})[:2])
            node = graph.call_function(target_of(name), tuple(args), kwargs)
        else:
            args, node = [], graph.placeholder(name)
        parts = args[0].meta["val"] if call and name == "getitem" else None
        val = parts[args[1]] if parts else values.of(stored["values"][stated], values.inside(memory, nodes))
        node.meta.update(dict.fromkeys(marks, True), val=val)
        nodes.append(node)
    results, visible = stored["outputs"]
    output = graph.output(tuple(decoded(results, nodes, "cpu")))
    if visible is not None:
        output.meta[VISIBLE] = visible
    return graph


class _Values:
    """Makes the values of a whole graph's nodes. Sizes are expressions of its symbols, of which torch knows
    what it knew of the first ones: ranges, and guards that are evaluated here."""

    def __init__(self, stored: dict[str, Any]) -> None:
        self.shape_env = ShapeEnv()
        self.mode = FakeTensorMode(shape_env=self.shape_env)
        self.names: dict[str, Any] = {"max": torch.sym_max, "min": torch.sym_min, "float": torch.sym_float}
        for name, (hint, *ends) in stored["symbols"].items():
            self.names[name] = self.symbol(name, hint, *ends)
        self.sizes: dict[str, Any] = {}
        for guard in stored["guards"]:
            if not self.evaluated(guard):
                raise ValueError(f"{guard} is not true")

    def symbol(self, name: str, hint: int, least: int, most: int | None) -> Any:
        env, source = self.shape_env, ConstantSource(name)
        symbol = env.create_symbol(hint, source=source, dynamic_dim=DimDynamic.DYNAMIC)
        env.constrain_symbol_range(symbol, compiler_min=least, compiler_max=int_oo if most is None else most)
        return env.create_symintnode(symbol, hint=hint, source=source)

    def evaluated(self, text: str) -> Any:
        return eval(text, {"__builtins__": {}}, self.names)

    def size(self, text: int | str) -> Any:
        if isinstance(text, str) and text not in self.sizes:
            self.sizes[text] = self.evaluated(text)
        return self.sizes[text] if isinstance(text, str) else text

    def inside(self, memory: Any, nodes: list[Any]) -> Any:
        """The tensor in whose memory a value lies; of several values, the tensors."""
        if isinstance(memory, list):
            return [self.inside(place, nodes) for place in memory]
        return None if memory is None else nodes[memory].meta["val"]

    def of(self, stated: Any, inside: Any = None) -> Any:
        """A value as `subgraphs.whole` states it, in the memory of other tensors."""
        if not isinstance(stated, list):
            return self.size(stated["$"]) if isinstance(stated, dict) else stated
        if len(stated) == 1:
            return tuple(map(self.of, stated[0], inside or [None] * len(stated[0])))
        shape, stride, (offset,) = ([*map(self.size, part)] for part in stated[1:])
        dtype = getattr(torch, stated[0])
        if inside is None:
            made = torch.empty_strided(shape, stride, dtype=dtype, device="meta")
        else:
            made = torch.empty(0, dtype=dtype, device="meta")
            made.set_(inside.untyped_storage(), offset, shape, stride)
        return FakeTensor(self.mode, made, torch.device("cpu"))
