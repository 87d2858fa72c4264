"""What holds for every graph: a failure at any point leaves it as it was, and a second pass changes nothing.

Every call of every stage is made to fail, on graphs that take all ways through the pipeline.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import itertools
import re
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import graphs
import pytest
import torch
import torch.nn.functional as F
from graphs import f32, pair, traced
from support.effects import guards
from torch._dynamo.utils import counters
from torch._functorch.aot_autograd import aot_export_joint_simple
from torch._inductor.decomposition import select_decomp_table
from torch.fx import Graph
from torch.utils.checkpoint import CheckpointPolicy

from mixorder import pipeline, planning, search
from mixorder import runner as runner_module
from mixorder.errors import Decline, DeclineReason, MixorderError
from mixorder.options import Options
from mixorder.planning import planning_with
from mixorder.report import collect
from mixorder.rewrite import joint as joint_module
from mixorder.rewrite.graph_writer import GraphWriter
from mixorder.schedule.device import MEASURED as H200
from mixorder.tune import tuner
from mixorder.tune.search import Tuning
from mixorder.tune.tuner import Problem, Tuned

STRICT = graphs.ALWAYS
TUNED = dataclasses.replace(STRICT, autotune=True, min_numel=1)  # with 0 nothing is timed versus a region
WITHOUT_EXCHANGES = dataclasses.replace(H200, exchanges=False)


def sums(count: int) -> Graph:
    def function(x: Any, dy: Any, *others: Any) -> Any:
        dx, dw = pair(x, dy)
        return (dx, dw, *[(dx * other).sum(0) for other in others])

    return traced(function, *[((4096, 8192), f32)] * (2 + count))


def two_regions() -> Graph:
    """Not of one structure: the second would take the first one's plan."""
    full, other = ((512, 256), f32), ((256, 512), f32)
    return traced(lambda a, b, c, d: (*pair(a, b), *pair(c, d)), full, full, other, other)


def with_largest(x: Any, dy: Any) -> Any:
    """One maximum joins the region, and one is restored."""
    dx, dw = pair(x, dy)
    return dx, dw, dx.amax(), dx[:100].amax()


@dataclasses.dataclass(frozen=True)
class Way:
    """A graph that takes one way through the pipeline, and what makes it take that way."""

    graph: Callable[[], Graph]
    shares: bool = True
    tuned: bool = False
    dumped: bool = False


WAYS = {
    "persistent": Way(lambda: graphs.layer_norm_backward(512, 256)),
    "cooperative": Way(lambda: graphs.rms_norm_backward(512, 16384)),
    "copied": Way(
        lambda: traced(
            lambda x, dy, z: (*pair(x, dy), z * (x * z).sum(1, keepdim=True)),
            *[((512, 256), f32)] * 3,
            transposed=(2,),
        )
    ),
    "moves": Way(lambda: sums(4), shares=False),
    "tuned": Way(lambda: graphs.rms_norm_backward(4096, 4096), tuned=True),
    "dumped": Way(lambda: graphs.rms_norm_backward(512, 256), dumped=True),
    "two regions": Way(two_regions),
    "blocks in a tile": Way(lambda: graphs.block_scales(512, 1024)),
    "two-pass": Way(lambda: graphs.batch_norm_backward(4096, 64)),
    "canonicalised": Way(lambda: traced(with_largest, *[((512, 256), f32)] * 2)),
}


class Failing:
    """Stands in front of `_Runner.step`: notes the stages, and makes call number `at` fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.at: int | None = None
        self.with_what: Callable[..., Any] = _fail
        self.stages: list[str] = []
        self.original = original = runner_module.Runner.step
        failing = self

        def step(runner: Any, stage: str, function: Any, *args: Any) -> Any:
            failing.stages.append(stage)
            if len(failing.stages) - 1 == failing.at:
                function = failing.with_what
            return original(runner, stage, function, *args)

        monkeypatch.setattr(runner_module.Runner, "step", step)

    def run(self, graph: Graph, options: Options, at: int | None) -> list[str]:
        return self.calling(pipeline.run, graph, options, at)

    def calling(self, function: Any, graph: Graph, options: Options, at: int | None) -> list[str]:
        self.at, self.stages = at, []
        function(graph, options)
        return self.stages


def _fail(*args: Any) -> Any:
    raise RuntimeError("injected")


def take_the_same_again(problem: Problem) -> Tuned:
    """Stands where schedules are timed."""
    chosen = problem.chosen
    return Tuned(chosen.strategy, chosen.loops, chosen.facts, chosen.schedule, Tuning(2.0, 1.0, 3, 0.1))


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Iterator[Failing]:
    counters["mixorder"].clear()
    yield Failing(monkeypatch)


@contextlib.contextmanager
def prepared(name: str, tmp_path: Path) -> Iterator[tuple[Way, Options]]:
    way = WAYS[name]
    device = planning_with(device=None if way.shares else WITHOUT_EXCHANGES)
    tune = mock.patch.object(tuner, "tune", take_the_same_again if way.tuned else tuner.tune)
    dump_dir = str(tmp_path / "dump") if way.dumped else ""
    with device, tune:
        yield way, dataclasses.replace(TUNED if way.tuned else STRICT, dump_dir=dump_dir)


def calls(stages: list[str]) -> list[int]:
    """The first call of each stage, the last, and of the others as many as there is time for."""
    firsts = {stages.index(stage) for stage in stages}
    return sorted({*firsts, *range(0, len(stages), 1 + len(stages) // 10), len(stages) - 1})


@pytest.mark.parametrize("name", WAYS)
def test_a_failure_in_any_call_of_any_stage(name: str, failing: Failing, tmp_path: Path) -> None:
    """Up to the first rewrite nothing has happened to the graph; up to the second, one region is fused."""
    with prepared(name, tmp_path) as (way, options):
        stages = failing.run(way.graph(), options, at=None)
        assert counters["mixorder"]["fused_regions"] == stages.count("rewrite") >= 1
        graph = way.graph()
        before = graphs.snapshot(graph)
        for at in calls(stages[: stages.index("rewrite") + 1]):
            with pytest.raises(MixorderError, match="injected") as caught:
                failing.run(graph, options, at)
            assert caught.value.stage == stages[at] and isinstance(caught.value.__cause__, RuntimeError)
            assert graphs.snapshot(graph) == before, (at, stages[at])
        graph.lint()
        assert failing.run(graph, options, at=None) == stages, "and nothing is remembered of the failures"
        graph.lint()


def test_a_question_that_needs_a_guard_is_a_refusal_in_any_call_of_any_stage(failing: Failing) -> None:
    """The region may be fused in another way, or is left alone: its guards are those of stock Inductor."""

    def ask(*args: Any) -> Any:
        return int(rows)

    def made() -> tuple[Graph, torch.SymInt]:
        graph = graphs.traced_rows(with_largest, *[((512, 256), f32)] * 2)
        return graph, graph.find_nodes(op="placeholder")[0].meta["val"].shape[0]

    stages = failing.run(made()[0], STRICT, at=None)
    failing.with_what = ask
    for at in calls(stages):
        graph, rows = made()
        before, known = graphs.snapshot(graph), guards(graph)
        with collect() as records:
            failing.run(graph, STRICT, at)
        declined = [r for r in records if isinstance(r, Decline)]
        assert all(r.reason is DeclineReason.DYNAMIC_SHAPE for r in declined)
        assert declined or graphs.snapshot(graph) != before, (at, stages[at])
        assert guards(graph) == known
        graph.lint()


def test_the_ways_take_every_stage(failing: Failing, tmp_path: Path) -> None:
    source = "".join(map(inspect.getsource, (pipeline, planning, search, runner_module)))
    declared = set(re.findall(r"""(?:step\(|_or_warn\(runner,)\s*"(\w+)",""", source))
    seen = set(failing.calling(pipeline.mark_joint, joint(), STRICT, at=None))
    for name in (name for name in WAYS if name != "two regions"):
        with prepared(name, tmp_path) as (way, options):
            seen.update(failing.run(way.graph(), options, at=None))
    assert seen == declared and len(declared) > 20


@pytest.mark.parametrize("stage", ["lower", "schedule", "codegen", "rewrite", "find"])
def test_the_second_region_fails_and_the_first_stays(stage: str, failing: Failing) -> None:
    lenient = dataclasses.replace(STRICT, strict=False)
    stages = failing.run(two_regions(), lenient, at=None)
    first_rewrite = stages.index("rewrite")
    at = first_rewrite + 1 + stages[first_rewrite + 1 :].index(stage)
    graph = two_regions()
    counters["mixorder"].clear()
    runner_module.warn_once.cache_clear()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        failing.run(graph, lenient, at)
    assert [stage in str(w.message) for w in caught if "mixorder failed" in str(w.message)] == [True]
    assert counters["mixorder"] == {"fused_regions": 1}
    assert sum("triton_kernel_wrapper" in str(n.target) for n in graph.nodes) == 2
    assert [n for n in graph.nodes if "sum" in str(n.target)], "the second region's nodes are there"
    graph.lint()


@pytest.mark.parametrize("last", [False, True])
def test_what_could_not_be_canonicalised_stops_no_fusion(last: bool, failing: Failing) -> None:
    lenient = dataclasses.replace(STRICT, strict=False)
    stages = failing.run(WAYS["canonicalised"].graph(), lenient, at=None)
    places = [i for i, stage in enumerate(stages) if stage == "canonicalise"]
    assert places[0] == 0 and stages[places[-1] + 1 :] == ["launches"]
    runner_module.warn_once.cache_clear()
    graph = WAYS["canonicalised"].graph()
    with pytest.warns(UserWarning, match="mixorder failed in stage 'canonicalise'"):
        failing.run(graph, lenient, places[-1] if last else 0)
    assert sum("triton_kernel_wrapper" in str(n.target) for n in graph.nodes) == 2
    graph.lint()


@pytest.mark.parametrize(("name", "fused"), [("planned", 0), ("finished", 1)])
def test_a_failure_between_stages_stops_no_compile(
    name: str, fused: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What no stage calls: a region is left alone, or stays."""
    monkeypatch.setattr(pipeline, name, _fail)
    runner_module.warn_once.cache_clear()
    graph = WAYS["persistent"].graph()
    with pytest.warns(UserWarning, match="mixorder failed in stage '(fuse|search)'"):
        pipeline.run(graph, dataclasses.replace(STRICT, strict=False))
    assert sum("triton_kernel_wrapper" in str(n.target) for n in graph.nodes) == 2 * fused
    graph.lint()
    with pytest.raises(MixorderError, match="injected"):
        pipeline.run(WAYS["persistent"].graph(), STRICT)


def joint() -> Graph:
    """A graph that gets every kind of mark."""

    def function(x: Any, w: Any, g: Any, b: Any, y: Any) -> Any:
        normed = torch.relu(F.batch_norm(F.conv2d(x, w), None, None, g, b, training=True))
        return F.conv2d(normed, w), (y * y).amax(-1), torch.exp(y).sum(-1) * y.sum()

    images, whole = torch.randn(4, 8, 16, 16), torch.randn(64, 256).bfloat16()
    args = images, torch.randn(8, 8, 1, 1), torch.randn(8), torch.randn(8), whole
    args = tuple(a.requires_grad_() for a in args)
    made = aot_export_joint_simple(function, args, trace_joint=True, decompositions=select_decomp_table())
    for node in made.graph.nodes:
        if node.target is torch.ops.aten.alias.default:  # of which Inductor's passes leave none
            node.replace_all_uses_with(node.args[0])
            made.graph.erase_node(node)
        if node.target in (torch.ops.aten.exp.default, torch.ops.aten.sum.dim_IntList):
            node.meta["recompute"] = CheckpointPolicy.PREFER_RECOMPUTE
    (total,) = made.graph.find_nodes(op="call_function", target=torch.ops.aten.sum.default)[:1]
    total.meta["recompute"] = CheckpointPolicy.MUST_RECOMPUTE
    return made.graph


def marked(graph: Graph) -> tuple[Any, ...]:
    """A graph with the metadata of its nodes."""
    return graphs.snapshot(graph), [{**node.meta} for node in graph.nodes], {n.name for n in graph.nodes}


MARKS = ("_keep", "_add_mask", "round_as_eager", "leave_to_inductor", "save_for_backward")


@pytest.mark.parametrize("name", MARKS)
def test_a_failure_in_any_mark_leaves_a_joint_graph(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it was; a user's compile goes on, and is warned once."""
    graph, calls, original = joint(), 0, getattr(joint_module, name)
    before = marked(graph)

    def counted(*args: Any) -> Any:
        nonlocal calls
        calls += 1
        result = original(*args)
        if calls == at:
            raise RuntimeError("injected")
        return result

    monkeypatch.setattr(joint_module, name, counted)
    for at in itertools.count(1):
        for strict in (True, False):
            calls = 0
            runner_module.warn_once.cache_clear()
            options = dataclasses.replace(STRICT, strict=strict)
            with warnings.catch_warnings(record=True) as caught, contextlib.suppress(MixorderError):
                warnings.simplefilter("always")
                changed = pipeline.mark_joint(graph, options)
                if calls < at:
                    assert changed and marked(graph) != before and at > 1
                    graph.lint()
                    return
                assert not strict and not changed
            assert marked(graph) == before
            assert len([w for w in caught if "failed in stage 'mark'" in str(w.message)]) == (not strict)


@pytest.mark.parametrize("strict", [True, False])
def test_a_failure_in_any_stage_that_marks(strict: bool, failing: Failing) -> None:
    options = dataclasses.replace(STRICT, strict=strict)
    stages = failing.calling(pipeline.mark_joint, joint(), options, at=None)
    assert stages == ["mark", "round", "save", "mask"]
    for at, stage in enumerate(stages):
        graph = joint()
        before = marked(graph)
        runner_module.warn_once.cache_clear()
        if strict:
            with pytest.raises(MixorderError, match="injected"):
                failing.calling(pipeline.mark_joint, graph, options, at)
        else:
            with pytest.warns(UserWarning, match=f"failed in stage '{stage}'"):
                failing.calling(pipeline.mark_joint, graph, options, at)
        assert (marked(graph) == before) == (strict or stage == "mark"), "the other marks are made"
        graph.lint()


@pytest.mark.parametrize("name", ["persistent", "cooperative", "copied"])
def test_a_failure_after_any_node_of_the_rewrite(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = WAYS[name].graph()
    before, add = graphs.snapshot(graph), GraphWriter.add
    made = 0

    def counted(self: Any, *args: Any) -> Any:
        nonlocal made
        node = add(self, *args)
        made += 1
        if made == at:
            raise RuntimeError("injected")
        return node

    monkeypatch.setattr(GraphWriter, "add", counted)
    for at in range(1, 100):
        made = 0
        try:
            pipeline.run(graph, STRICT)
        except MixorderError as error:
            assert error.stage == "rewrite"
            assert graphs.snapshot(graph) == before, at
        else:
            break
    assert at > 5 and graphs.snapshot(graph) != before
    graph.lint()


@pytest.mark.parametrize("seed", range(10))
def test_a_second_pass_changes_nothing(seed: int) -> None:
    options = dataclasses.replace(STRICT, min_numel=0)
    graph = graphs.random_graph(seed)
    pipeline.run(graph, options)
    before = graphs.snapshot(graph)
    pipeline.run(graph, options)
    assert graphs.snapshot(graph) == before
