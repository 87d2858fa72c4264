"""What is captured and timed, without a GPU: Inductor's own kernels, and copies before a launch."""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import graphs
import pytest
import torch
from graphs import f32, traced
from torch.fx import Graph

from mixorder import pipeline
from mixorder.inductor import stock
from mixorder.options import Options
from mixorder.rewrite.standalone import Standalone
from mixorder.tune import measure, tuner
from mixorder.tune.measure import Bench, NotComparable, in_own_thread
from mixorder.tune.search import Candidate

STRICT = Options(enabled=True, strict=True, interpret=True, autotune=True)
CPU = torch.device("cpu")


def bench_of(graph: Graph, monkeypatch: pytest.MonkeyPatch) -> tuple[Bench, Candidate, Standalone]:
    """What would time a graph's only region, and the first candidate."""
    found: list[Any] = []

    def noted(ways: Mapping[str, Any], label: str, device: torch.device, standalone: Standalone) -> Any:
        (name, start), *_ = ways.items()
        found.append((Bench(ways, label, CPU, standalone), Candidate(name, start.schedule), standalone))
        raise measure.NotEnoughMemory

    monkeypatch.setattr(tuner, "Bench", noted)
    monkeypatch.setattr(tuner, "reason_to_skip", lambda device: None)
    pipeline.run(graph, STRICT)
    (only,) = found
    return only


@pytest.fixture
def no_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step instead of a CUDA graph of it."""
    monkeypatch.setattr(torch.cuda, "Stream", lambda: None)
    monkeypatch.setattr(measure, "capture", lambda step, _: types.SimpleNamespace(outputs=step(), graph=None))


@pytest.mark.usefixtures("no_graphs")
def test_inductors_kernels_read_the_candidates_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    bench, candidate, standalone = bench_of(graphs.pair_graph(512, 256), monkeypatch)
    captured = in_own_thread(bench._inductors)
    loops = bench.ways[candidate.variant].loops
    inputs = [bench._tensor(loops, like.name, 132) for like in standalone.inputs]
    assert len(bench.tensors) == len(inputs) == 2
    for mine, theirs in zip(captured.outputs, standalone.module()(*inputs), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("no_graphs")
@pytest.mark.parametrize("error", [RuntimeError("no kernels"), torch.OutOfMemoryError("no room")])
def test_what_inductor_raises(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def compile_as_shipped(*_: Any) -> Callable[..., Any]:
        raise error

    bench, _, _ = bench_of(graphs.pair_graph(512, 256), monkeypatch)
    monkeypatch.setattr(measure, "compile_as_shipped", compile_as_shipped)
    with pytest.raises(NotComparable if type(error) is RuntimeError else torch.OutOfMemoryError):
        bench._inductors()
    assert stock.compile_as_shipped is not compile_as_shipped


@pytest.mark.usefixtures("no_graphs")
def test_what_runs_on_the_gpu_waits_for_others_and_what_compiles_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Processes that share a GPU time alone, and compile side by side."""
    bench, candidate, _ = bench_of(graphs.pair_graph(512, 256), monkeypatch)
    seen: list[str] = []

    @contextlib.contextmanager
    def turn() -> Iterator[None]:
        seen.append("taken")
        yield
        seen.append("given back")

    def noted(what: str, result: Any) -> Callable[..., Any]:
        return lambda *_, **__: seen.append(what) or result

    monkeypatch.setattr(measure, "exclusive_gpu", turn)
    monkeypatch.setattr(bench, "_on_device", lambda measured: measured())
    monkeypatch.setattr(bench, "_compiled", noted("compiled", {}))
    monkeypatch.setattr(measure, "compile_as_shipped", noted("compiled", noted("run", [])))
    monkeypatch.setattr(bench, "_graphs", noted("captured", {candidate: None}))
    monkeypatch.setattr(bench, "_times", noted("timed", {"ours": 1.0, "Inductor's": 2.0}))
    bench([candidate], 1)
    assert seen == ["compiled", "taken", "captured", "timed", "given back"]
    seen.clear()
    assert bench.versus_inductor(candidate, 1).inductor_us == 2.0
    ours, inductors = ["taken", "captured", "timed", "given back"], ["taken", "run", "run", "given back"]
    assert seen == ["compiled", "compiled", *inductors, *ours]


def test_an_input_that_is_copied_before_the_launch_is_copied_in_its_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def function(x: Any, dy: Any, other: Any) -> Any:
        return graphs.pair(x * other, dy)

    graph = traced(function, *[((512, 256), f32)] * 3, transposed=[2])
    bench, candidate, standalone = bench_of(graph, monkeypatch)
    (like,) = (like for like in standalone.inputs if like.stride == (1, 512))
    (copy,) = bench._copies(candidate)
    read = bench._tensor(bench.ways[candidate.variant].loops, like.name, 132)
    stated = bench._made(like.name, like.dtype, like.shape, like.stride, filled=True)
    assert read.stride() == (256, 1) and stated.stride() == (1, 512) and not torch.equal(read, stated)
    copy()
    assert torch.equal(read, stated)
    bench, candidate, _ = bench_of(graphs.pair_graph(512, 256), monkeypatch)
    assert bench._copies(candidate) == []
