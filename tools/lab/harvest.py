"""Runs a model's training graphs through mixorder's pass, and keeps what it found as entries of the corpus.
Of programs (`WHOLE`) it keeps the graphs themselves.

In: a family and a recipe. Out: `Harvest`, plain data. Needs `fake_cuda`; nothing is computed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

from torch.fx import Graph, Node

import mixorder.pipeline as pipeline
import mixorder.region.find as find
from lab import families, recipes, subgraphs
from lab.corpus import Entry, Place, merged, structural_key
from mixorder.errors import Decline
from mixorder.inspection.capture import explain
from mixorder.inspection.explanation import Report
from mixorder.inspection.meta import faked
from mixorder.region.region import Region

WHOLE = ("programs/", "spellings/")
NAME = re.compile(r"triton_mixorder_\w+")


@dataclasses.dataclass
class Harvest:
    """Of one family and recipe. `error`: empty, or why there is nothing. `left_out`: why subgraphs were not
    kept. `kernels`: the texts without names. `us`: the predicted time of all that regions need."""

    family: str
    recipe: str
    error: str = ""
    seconds: float = 0.0
    left_out: dict[str, int] = dataclasses.field(default_factory=dict)
    entries: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    trace: str = ""
    kernels: list[str] = dataclasses.field(default_factory=list)
    us: float = 0.0


def work(task: tuple[str, str]) -> Harvest:
    """The harvest of a family and recipe. Every error of the model becomes the harvest's `error`."""
    family, recipe = task
    started = time.time()
    result = Harvest(family, recipe)
    try:
        _fill(result)
    except Exception as error:
        last = (str(error).strip() or "no message").splitlines()[0]
        result.error = f"{type(error).__name__}: {last}"[:300]
        result.trace = traceback.format_exc()[-3000:]
    result.seconds = round(time.time() - started, 1)
    return result


def _fill(result: Harvest) -> None:
    with _keeping(result) as kept:
        report = _explained(result.family, result.recipe)
    result.entries = [dataclasses.asdict(entry) for entry in merged(kept)]
    texts = (f"{k.grid} {k.config}\n{k.text}" for region in report.regions for k in region.kernels)
    result.kernels = sorted(NAME.sub("kernel", text) for text in texts)
    result.us = report.totals.ours_us
    if not report.graphs:
        raise RuntimeError("no graph was compiled")
    if failures := [failure for graph in report.graphs for failure in graph.failures]:
        raise failures[0]  # the entries before it stay


@contextlib.contextmanager
def _keeping(result: Harvest) -> Iterator[list[Entry]]:
    """Keep every region and near miss that the pass meets, as it is before the rewrite, or its graphs."""
    kept: list[Entry] = []

    def keep(graph: Graph, cut: subgraphs.Cut | None, outcome: str, detail: str) -> None:
        if cut is not None:
            place = Place(result.family, result.recipe, "backward" if _is_backward(graph) else "forward", 1)
            key = structural_key(cut.inputs, cut.nodes, cut.outputs)
            kept.append(Entry(key, **vars(cut), outcome=outcome, detail=detail, places=[place]))

    fuse, grow, agree, run = pipeline.fuse, find.grow, find.agree, pipeline.run

    def ran(graph: Graph, *rest: Any) -> Any:
        nodes = [node for node in graph.nodes if node.op == "call_function"]
        results = graph.find_nodes(op="output")[0].all_input_nodes
        keep(graph, _cut(lambda: subgraphs.cut(nodes, results, [], []), result), "whole", "")
        return run(graph, *rest)

    def grown(seed: Any, name: str) -> Any:
        with _noted(seed.inner, seed.outer):
            return grow(seed, name)

    def agreed(outer: Node, inner: Any, outers: Any) -> Any:
        with _noted(inner, outers):
            return agree(outer, inner, outers)

    def fused(graph: Graph, decision: Any, *rest: Any) -> Any:
        cut = _cut(lambda: _found(decision, graph), result)
        try:
            region, record = fuse(graph, decision, *rest)
        except Decline as decline:
            keep(graph, cut, decline.reason.value, decline.detail)
            raise
        part = isinstance(decision, Region) and set(region.nodes) != set(decision.nodes)
        keep(graph, cut, "part" if part else "fused", record.strategy)
        return region, record

    if result.family.startswith(WHOLE):
        with mock.patch.object(pipeline, "run", ran):
            yield kept
        return
    with (
        mock.patch.object(pipeline, "fuse", fused),
        mock.patch.object(find, "grow", grown),
        mock.patch.object(find, "agree", agreed),
    ):
        yield kept


@contextlib.contextmanager
def _noted(inner: Any, outer: Any) -> Iterator[None]:
    """Write on a `Decline` which reductions it is about."""
    try:
        yield
    except Decline as decline:
        decline.pair = (tuple(inner), tuple(outer))  # type: ignore[attr-defined]
        raise


def _is_backward(graph: Graph) -> bool:
    return any(n.op == "placeholder" and n.name.startswith("tangents") for n in graph.nodes)


def _found(decision: Region | Decline, graph: Graph) -> subgraphs.Cut:
    if isinstance(decision, Region):
        return subgraphs.of_region(decision)
    alive = set(graph.nodes)  # a cycle is told last, and regions may have taken some of its reductions
    inner, outer = ([n for n in side if n in alive] for side in getattr(decision, "pair", ((), ())))
    if not inner and not outer:
        raise subgraphs.NotKept("a decline without reductions")
    return subgraphs.of_miss(inner, outer)


def _cut(made: Callable[[], subgraphs.Cut], result: Harvest) -> subgraphs.Cut | None:
    try:
        return made()
    except subgraphs.NotKept as why:
        result.left_out[str(why)] = result.left_out.get(str(why), 0) + 1
        return None


# Whole graphs.


@dataclasses.dataclass(frozen=True)
class Traced:
    """The post-grad graphs of a program by name, as `subgraphs.whole` gives them; `error`: why there are no
    more."""

    graphs: dict[str, dict[str, Any]]
    error: str = ""


def traced(task: tuple[str, str]) -> Traced:
    """The graphs of a family in a recipe. Every error of the model becomes the result's `error`."""
    family, recipe = task
    graphs: dict[str, dict[str, Any]] = {}
    run = pipeline.run

    def ran(graph: Graph, *rest: Any) -> Any:
        kind = "backward" if _is_backward(graph) else "forward"
        graphs[f"{family} {recipe} {len(graphs)} {kind}"] = subgraphs.whole(graph)
        return run(graph, *rest)

    try:
        with mock.patch.object(pipeline, "run", ran):
            _explained(family, recipe, {"mixorder": True})  # with the marks of the joint graph
    except Exception as error:  # the next program goes on
        return Traced(graphs, f"{type(error).__name__}: {error}"[:300])
    return Traced(graphs)


def _explained(family: str, recipe: str, options: dict[str, Any] | None = None) -> Report:
    """The report of a family's training step in a recipe, on fake tensors of a GPU."""
    model, inputs = families.build(family)
    recipes.cast(model, recipe)
    model, inputs = faked(model, inputs, "cuda")
    recipes.mark(inputs, recipe)
    return explain(recipes.step(model, recipe), options)(**inputs)
