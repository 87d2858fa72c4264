"""The pipeline as a whole: graphs it must leave alone, failures in each stage, strict mode."""

from __future__ import annotations

import dataclasses
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import graphs
import pytest
import torch
from graphs import bf16, f32, pair, traced
from torch._dynamo.utils import counters
from torch.fx import Graph, Node
from torch.utils.checkpoint import CheckpointPolicy

from mixorder import pipeline, planning, runner
from mixorder.errors import Decline, DeclineReason, MixorderError
from mixorder.inductor.graphs import is_recomputed
from mixorder.options import Options
from mixorder.region import legality
from mixorder.report import collect
from mixorder.strategies import STRATEGIES

FULL = ((512, 256), f32)
STRICT = Options(enabled=True, strict=True, interpret=True)
ALWAYS = dataclasses.replace(STRICT, min_numel=0)  # whatever time is predicted
LENIENT = dataclasses.replace(ALWAYS, strict=False)


@pytest.fixture(autouse=True)
def fresh() -> None:
    counters["mixorder"].clear()
    runner.warn_once.cache_clear()
    legality.say_once.cache_clear()


# Left alone.

NO_PAIRS = {
    "inner_only": lambda x, dy: dy - x * (x * dy).sum(1, keepdim=True),
    "outer_only": lambda x, dy: (x * dy).sum(0),
    "empty": lambda x, dy: (),
}


@pytest.mark.parametrize("name", NO_PAIRS)
def test_a_graph_without_pairs_is_the_same_afterwards(name: str) -> None:
    graph = traced(NO_PAIRS[name], FULL, FULL)
    before = graphs.snapshot(graph)
    meta = [dict(n.meta) for n in graph.nodes]
    pipeline.run(graph, STRICT)
    assert graphs.snapshot(graph) == before
    assert [dict(n.meta) for n in graph.nodes] == meta
    assert not counters["mixorder"]


def test_cpu_graphs_are_left_alone_unless_interpreted(said: Callable[[], list[str]]) -> None:
    graph = graphs.pair_graph()
    before = graphs.snapshot(graph)
    for _ in range(2):
        pipeline.run(graph, Options(enabled=True, strict=True))
    assert graphs.snapshot(graph) == before
    assert sum("needs a GPU" in line for line in said()) == 1


@pytest.mark.parametrize("shape", [(0, 256), (512, 0), (0, 0)])
def test_empty_tensors_are_left_alone(shape: tuple[int, int]) -> None:
    graph = traced(pair, (shape, f32), (shape, f32))
    before = graphs.snapshot(graph)
    pipeline.run(graph, ALWAYS)
    assert graphs.snapshot(graph) == before


# Fused.


def test_two_regions_and_a_decline_between_them() -> None:
    def function(a: Any, b: Any, c: Any, d: Any, e: Any, f: Any) -> Any:
        return *pair(a, b), *pair(c, d), *pair(e, f)

    small = ((16, 8), f32)
    first, last = ((4096, 256), f32), ((2048, 512), f32)
    graph = traced(function, first, first, small, small, last, last)
    pipeline.run(graph, STRICT)
    assert counters["mixorder"] == {"fused_regions": 2, "declined:too-small": 1}
    graph.lint()


def test_split_size_sets_the_number_of_programs() -> None:
    graph = graphs.pair_graph()
    pipeline.run(graph, dataclasses.replace(ALWAYS, split_size=3))
    grids = [n.kwargs["grid"][0] for n in graph.nodes if "grid" in n.kwargs]
    assert grids[0] == (171, 1, 1)


# Failures. tests/test_every_failure.py has those of every call, in strict mode.


@pytest.mark.parametrize("stage", ["find", "legality", "lower", "schedule", "codegen", "report", "rewrite"])
def test_a_failing_stage_leaves_the_graph_and_warns_once(stage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    step = runner.Runner.step

    def failing(self: Any, name: str, function: Any, *args: Any) -> Any:
        def fail(*args: Any) -> Any:
            raise RuntimeError("injected")

        return step(self, name, fail if name == stage else function, *args)

    monkeypatch.setattr(runner.Runner, "step", failing)
    graph = graphs.layer_norm_backward(512, 256)
    before = graphs.snapshot(graph)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        pipeline.run(graph, LENIENT)
        pipeline.run(graph, LENIENT)
    assert graphs.snapshot(graph) == before
    graph.lint()
    texts = [str(w.message) for w in caught if "mixorder" in str(w.message)]
    assert len(texts) == 1
    assert stage in texts[0] and "injected" in texts[0] and "mixorder" in texts[0]
    assert not counters["mixorder"]


def test_strict_mode_verifies_between_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stage that returns an illegal program is stopped at its border."""
    monkeypatch.setattr(pipeline, "split_outer", lambda program: program)
    graph = graphs.pair_graph()
    with pytest.raises(MixorderError, match="nests over rows after the split"):
        pipeline.run(graph, STRICT)


def complex_numbers(x: Any, dy: Any) -> Any:
    """A pair that the search itself declines, for its dtype."""
    return (x * dy).sum(1), (x * dy).sum(0)


@pytest.mark.parametrize("name", ["file", "x" * 300])
@pytest.mark.parametrize("declined", [False, True])
def test_an_unwritable_dump_directory_stops_no_fusion(tmp_path: Path, declined: bool, name: str) -> None:
    (tmp_path / "file").write_text("")
    graph = traced(complex_numbers, *[((512, 256), torch.complex64)] * 2) if declined else graphs.pair_graph()
    counters["mixorder"].clear()
    with pytest.warns(UserWarning) as warned:
        fused = pipeline.run(graph, Options(**{**vars(LENIENT), "dump_dir": str(tmp_path / name)}))
    (message,) = (str(w.message) for w in warned if "mixorder" in str(w.message))
    assert re.match(f"mixorder_dump_dir .*: nothing is dumped.*{name}", message)
    graph.lint()
    assert len(fused) == (not declined)
    assert (counters["mixorder"]["declined:unsupported-dtype"] > 0) == declined


def of_largest(x: Any, w: Any) -> Any:
    return x * w == (x * w).amax(-1, keepdim=True)


def marks(options: Options) -> list[bool]:
    """Whether each node of a graph that compares is marked to round."""
    graph = traced(of_largest, *[((512, 256), bf16)] * 2)
    assert pipeline.mark_joint(graph, options) == any("rounded" in n.name for n in graph.nodes)
    return ["rounded" in n.name for n in graph.nodes if n.op == "call_function"]


def test_what_is_compared_is_marked_on_devices_of_ours() -> None:
    assert marks(STRICT) == [True, True, False, True]
    assert not any(marks(dataclasses.replace(STRICT, interpret=False)))


def test_a_decline_holds_no_frames() -> None:
    """From Python 3.12 on, those of a generator hold their callers', and so a training step's gradients."""
    with collect() as records:
        pipeline.run(graphs.rms_norm_backward(8, 64), Options(interpret=True, strict=True))
    (decline,) = records
    assert isinstance(decline, Decline) and decline.reason is DeclineReason.TOO_SMALL
    assert decline.__traceback__ is None and decline.__context__ is None


def test_a_failure_to_mark_leaves_the_graph_and_warns(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(graph: Graph) -> Any:
        raise ZeroDivisionError

    monkeypatch.setattr(pipeline, "roundings", fails)
    with pytest.warns(UserWarning, match="failed in stage 'round'"):
        assert not any(marks(LENIENT))
    with pytest.raises(MixorderError, match="failed in stage 'round'"):
        marks(STRICT)


def policies(options: Options) -> list[CheckpointPolicy]:
    """Of the nodes of a checkpointed norm, once it is marked."""
    graph = traced(lambda x: torch.layer_norm(x, x.shape[1:]), ((512, 256), f32))
    nodes = [n for n in graph.nodes if n.op == "call_function"]
    for node in nodes:
        node.meta["recompute"] = CheckpointPolicy.PREFER_RECOMPUTE
    assert not pipeline.mark_joint(graph, options)
    return [node.meta["recompute"] for node in nodes]


def test_sums_are_saved_on_devices_of_ours() -> None:
    assert policies(STRICT).count(CheckpointPolicy.MUST_SAVE) == 3  # a pair and its two results
    assert CheckpointPolicy.MUST_SAVE not in policies(dataclasses.replace(STRICT, interpret=False))


def test_no_backward_recomputes_what_needs_no_gradient() -> None:
    for name, again in (("arg0_1", False), ("primals_1", True)):
        node = torch.fx.Graph().placeholder(name)
        node.meta["recompute"] = CheckpointPolicy.PREFER_RECOMPUTE
        assert is_recomputed(node) == again


def test_a_failure_to_save_sums_leaves_the_graph_and_warns(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(node: Node) -> Any:
        raise ZeroDivisionError

    monkeypatch.setattr(pipeline, "readers_in_half_precision", fails)
    with pytest.warns(UserWarning, match="failed in stage 'save'"):
        assert CheckpointPolicy.MUST_SAVE not in policies(LENIENT)
    with pytest.raises(MixorderError, match="failed in stage 'save'"):
        policies(STRICT)


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_is_not_swallowed(
    interrupt: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(region: Any) -> Any:
        raise interrupt

    monkeypatch.setattr(pipeline, "lower", stop)
    with pytest.raises(interrupt):
        pipeline.run(graphs.pair_graph(), LENIENT)


def test_a_pair_with_wide_rows_has_no_reason_where_its_sums_are_over_reduction_groups() -> None:
    """An instance norm behind a bias: where nothing is fused over reduction groups, there is a reason."""

    def function(dy: Any, x: Any) -> Any:
        sums = [one.float().sum((2, 3), keepdim=True) for one in (dy, dy.float() * x)]
        mean, both = (one / 2**18 for one in sums)
        dx = (dy.float() - mean - x * both).to(x.dtype)
        return dx, dx.sum((0, 2, 3)), *(one.sum(0) for one in sums)

    told: dict[bool, list[DeclineReason | None]] = {}
    for over_reduction_groups in (True, False):
        own = [s for s in STRATEGIES if over_reduction_groups or s.name != "two-pass"]
        with collect() as outcomes, planning.planning_with(strategies=own):
            pipeline.run(traced(function, *[((4, 32, 512, 512), bf16)] * 2), ALWAYS)
        told[over_reduction_groups] = [end.reason if isinstance(end, Decline) else None for end in outcomes]
    assert told[True] == [None]
    assert DeclineReason.ROW_TOO_WIDE in told[False] and None not in told[False]
