"""Tuning inside the pipeline, with invented times: what is taken, what is remembered, and what may fail."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import graphs
import pytest
import torch
from torch._dynamo.utils import counters
from torch._inductor import config
from torch.fx import Graph

from mixorder import pipeline, plugin, runner
from mixorder.errors import Decline, DeclineReason, MixorderError
from mixorder.ir.program import BufferRole
from mixorder.options import Options
from mixorder.report import RegionRecord, collect
from mixorder.rewrite.standalone import Standalone
from mixorder.schedule import baseline, predicted
from mixorder.schedule.device import MEASURED as H200
from mixorder.strategies import STRATEGIES
from mixorder.tune import tuner
from mixorder.tune.measure import Bench, NotComparable, NotEnoughMemory, in_own_thread
from mixorder.tune.search import DUELS, Candidate, VersusInductor

STRICT = Options(enabled=True, strict=True, interpret=True, autotune=True)
LENIENT = dataclasses.replace(STRICT, strict=False)
UNTUNED = dataclasses.replace(STRICT, autotune=False)


class FakeBench:
    """Stands where the GPU is timed. Class attributes: the times, and what was asked for."""

    us: Callable[[Candidate], float] = staticmethod(lambda c: 30.0)
    inductor_us: Callable[[], float] = staticmethod(lambda: 1000.0)
    built: list[FakeBench] = []

    def __init__(
        self, programs: Mapping[str, Any], label: str, device: torch.device, standalone: Standalone | None
    ) -> None:
        self.programs, self.label, self.standalone = programs, label, standalone
        self.timed, self.beside = list[Candidate](), list[Candidate]()
        FakeBench.built.append(self)

    def __call__(self, candidates: Sequence[Candidate], reps: int) -> Mapping[Candidate, float]:
        self.timed += candidates
        return {c: type(self).us(c) for c in candidates}

    def versus_inductor(self, candidate: Candidate, reps: int) -> VersusInductor:
        self.beside.append(candidate)
        return VersusInductor(type(self).us(candidate), type(self).inductor_us())


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A machine that could time kernels, with an empty cache."""
    counters["mixorder"].clear()
    tuner.say_once.cache_clear()
    runner.warn_once.cache_clear()
    FakeBench.built.clear()
    monkeypatch.setattr(FakeBench, "us", staticmethod(few_programs))
    monkeypatch.setattr(FakeBench, "inductor_us", staticmethod(lambda: 1000.0))
    monkeypatch.setattr(tuner, "Bench", FakeBench)
    monkeypatch.setattr(tuner, "reason_to_skip", lambda device: None)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    yield


def few_programs(candidate: Candidate) -> float:
    """Times that prefer few programs and stages."""
    return 20.0 + candidate.schedule.splits / 100 + candidate.schedule.launch.num_stages


def run(options: Options = STRICT, graph: Graph | None = None) -> RegionRecord:
    with collect() as records:
        pipeline.run(graph or graphs.rms_norm_backward(32768, 768), options)
    (record,) = records
    assert isinstance(record, RegionRecord)
    return record


def files(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "inductor" / "mixorder").glob("*"))


def test_the_winner_is_what_is_launched() -> None:
    graph = graphs.rms_norm_backward(32768, 768)
    plain, tuned = run(UNTUNED), run(graph=graph)
    assert plain.planning.tuning is None and plain.schedule.splits == 528
    assert tuned.schedule.splits == 132
    assert tuned.schedule.launch.num_stages < plain.schedule.launch.num_stages
    tuning = tuned.planning.tuning
    assert tuning is not None and not tuning.from_cache and tuning.candidates > 5
    assert tuning.heuristic_us == few_programs(Candidate("", plain.schedule))
    assert tuning.best_us == few_programs(Candidate("", tuned.schedule)) < tuning.heuristic_us
    main, final = tuned.kernels
    assert main.grid == 132 and dict(main.config.constants)["NUM_STAGES"] == tuned.schedule.launch.num_stages
    launched = [n.kwargs["grid"] for n in graph.nodes if "triton_kernel_wrapper" in str(n.target)]
    assert launched == [[(main.grid, 1, 1)], [(final.grid, 1, 1)]]
    assert tuned.traffic.workspace * 528 == plain.traffic.workspace * 132
    assert (tuned.traffic.read, tuned.traffic.written) == (plain.traffic.read, plain.traffic.written)


def test_the_log_says_what_was_gained(said: Callable[[], list[str]]) -> None:
    assert f"region0: {run().planning.tuning}" in said()


def declined(options: Options = STRICT, graph: Graph | None = None) -> Decline:
    """The reason for a graph of one region, which is left as it was."""
    graph = graph or graphs.rms_norm_backward(32768, 768)
    before = graphs.snapshot(graph)
    with collect() as records:
        pipeline.run(graph, options)
    assert graphs.snapshot(graph) == before
    (decline,) = records
    assert isinstance(decline, Decline)
    return decline


def test_inductors_kernels_are_left_where_they_are_faster(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, said: Callable[[], list[str]]
) -> None:
    monkeypatch.setattr(FakeBench, "inductor_us", staticmethod(lambda: 20.0))
    first = declined()
    (bench,) = FakeBench.built
    assert len(bench.beside) == DUELS and set(bench.beside) < set(bench.timed)
    us = min(map(few_programs, bench.timed))
    assert first.reason is DeclineReason.SLOWER
    assert first.detail == f"{us:.1f} us measured for mixorder's kernels, 20.0 us for Inductor's"
    assert f"not fused: {us:.1f} us, Inductor 20.0 us" in "\n".join(said())
    second = declined()
    assert len(FakeBench.built) == len(files(tmp_path)) == 1
    assert second.detail == first.detail and counters["mixorder"] == {"declined:slower": 2}


def test_what_was_tuned_is_used_by_compiles_that_do_not_tune(
    monkeypatch: pytest.MonkeyPatch, said: Callable[[], list[str]]
) -> None:
    """Then it is part of the identity by which Inductor's caches know a graph. What was not tuned is not."""
    untuned, (_, before) = run(UNTUNED), plugin._identity()
    tuned = run()
    again = run(UNTUNED)
    assert again.schedule == tuned.schedule != untuned.schedule
    assert again.planning.tuning is not None and again.planning.tuning.from_cache
    assert f"region0: {again.planning.tuning}" in said() and len(FakeBench.built) == 1
    assert plugin._identity()[1] != before
    other = run(UNTUNED, graphs.rms_norm_backward(32768, 512))
    assert other.planning.tuning is None and len(FakeBench.built) == 1
    monkeypatch.setattr(tuner.config, "wants_deterministic_results", lambda: True)
    assert run(UNTUNED).schedule == untuned.schedule and plugin._identity()[1] == before


def test_what_timing_has_left_to_inductor_is_left_without_timing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeBench, "inductor_us", staticmethod(lambda: 20.0))
    assert declined().detail == declined(UNTUNED).detail and len(FakeBench.built) == 1


def test_times_decide_whatever_was_predicted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        predicted, "baseline", types.SimpleNamespace(**vars(baseline) | {"microseconds": lambda *_: 0.1})
    )
    assert declined(UNTUNED).reason is DeclineReason.SLOWER
    assert run().planning.tuning is not None
    monkeypatch.setattr(FakeBench, "inductor_us", staticmethod(failing(NotComparable("no kernels"))))
    assert "predicted" in declined(graph=graphs.rms_norm_backward(32768, 512)).detail
    monkeypatch.setattr(FakeBench, "inductor_us", staticmethod(lambda: 10.0))
    assert "measured" in declined(graph=graphs.rms_norm_backward(32768, 256)).detail


def test_what_is_fused_in_any_case_is_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeBench, "inductor_us", staticmethod(lambda: 10.0))
    tuning = run(dataclasses.replace(STRICT, min_numel=0)).planning.tuning
    assert tuning is not None and tuning.beside is None and not FakeBench.built[0].beside


def test_a_region_that_occurs_twice_is_timed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def function(x: Any, dy: Any, other: Any, z: Any) -> Any:
        return *graphs.pair(x, dy), *graphs.pair(other, z)

    monkeypatch.setattr(FakeBench, "inductor_us", staticmethod(lambda: 10.0))
    full = ((4096, 256), torch.float32)
    with collect() as records, config.patch(force_disable_caches=True):
        pipeline.run(graphs.traced(function, full, full, full, full), STRICT)
    assert [record.reason for record in records] == [DeclineReason.SLOWER] * 2  # type: ignore[union-attr]
    assert len(FakeBench.built) == 1


@pytest.mark.parametrize("error", [NotComparable("InductorError: it is odd"), NotEnoughMemory("no room")])
def test_what_inductor_cannot_run_by_itself_is_tuned_without(
    error: Exception, monkeypatch: pytest.MonkeyPatch, said: Callable[[], list[str]], tmp_path: Path
) -> None:
    monkeypatch.setattr(FakeBench, "inductor_us", staticmethod(failing(error)))
    untuned, first, second = run(UNTUNED), run(), run()
    assert first.planning.tuning is not None and first.planning.tuning.beside is None
    assert first.schedule == second.schedule != untuned.schedule
    lasting = isinstance(error, NotComparable)  # memory may be there next time
    assert len(files(tmp_path)) == lasting and len(FakeBench.built) == 2 - lasting
    assert sum(str(error) in line for line in said()) == 1


def test_another_setting_of_inductors_is_timed_by_itself() -> None:
    run()
    with config.patch({"triton.unique_kernel_names": not config.triton.unique_kernel_names}):
        run()
    run(dataclasses.replace(STRICT, min_numel=1))
    assert len(FakeBench.built) == 2


@pytest.mark.parametrize("name", ["max_autotune", "max_autotune_pointwise", "coordinate_descent_tuning"])
def test_inductors_own_tuning_options_tune_us_too(name: str) -> None:
    with config.patch({name: True}):
        assert run(UNTUNED).planning.tuning is not None
    assert run(UNTUNED).planning.tuning is None


@contextlib.contextmanager
def deterministic_algorithms() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("asked", [deterministic_algorithms, lambda: config.patch(deterministic=True)])
def test_determinism_is_not_tuned_and_said_once(asked: Any, said: Callable[[], list[str]]) -> None:
    with asked():
        records = [run(), run()]
    assert all(r.planning.tuning is None and r.schedule.splits == 528 for r in records)
    assert not FakeBench.built
    assert sum("deterministic" in line for line in said()) == 1


def test_a_second_compile_takes_it_from_the_cache(tmp_path: Path) -> None:
    first, second = run(), run()
    assert len(FakeBench.built) == len(files(tmp_path)) == 1
    assert (
        first.planning.tuning is not None
        and second.planning.tuning is not None
        and second.planning.tuning.from_cache
    )
    assert dataclasses.replace(second.planning.tuning, from_cache=False) == first.planning.tuning
    assert (second.schedule, second.kernels) == (first.schedule, first.kernels)


@pytest.mark.parametrize(
    "other",
    [
        lambda: graphs.rms_norm_backward(32768, 1024),
        lambda: graphs.rms_norm_backward(65536, 768),
        lambda: graphs.layer_norm_backward(32768, 768),
    ],
)
def test_another_region_is_tuned_by_itself(other: Any, tmp_path: Path) -> None:
    run()
    assert run(graph=other()).planning.tuning.from_cache is False  # type: ignore[union-attr]
    assert len(files(tmp_path)) == 2


def test_another_version_or_device_is_tuned_by_itself(
    monkeypatch: pytest.MonkeyPatch, plan_with: Callable[..., None]
) -> None:
    run()
    monkeypatch.setattr(tuner, "source_hash", lambda: "changed")
    run()
    monkeypatch.setattr(tuner.versions, "versions", lambda: ["other"])
    run()
    plan_with(device=dataclasses.replace(H200, name="other"))
    run()
    assert len(FakeBench.built) == 4
    run()
    assert len(FakeBench.built) == 4


ILLEGAL = {
    "tile": {"tile": {"xblock": 3, "num_warps": 2, "num_stages": 3}},
    "too_large": {"tile": {"xblock": 1 << 20, "num_warps": 2, "num_stages": 3}},
    "other_columns": {"r0_block": 512},
    "no_programs": {"num_splits": 0},
    "too_many_programs": {"num_splits": 10**9},
}


@pytest.mark.parametrize("change", ILLEGAL)
def test_a_stored_schedule_that_is_not_legal_here_is_replaced(change: str, tmp_path: Path) -> None:
    wanted = run().schedule
    (path,) = files(tmp_path)
    data = json.loads(path.read_text())
    data["schedule"] |= ILLEGAL[change]
    path.write_text(json.dumps(data))
    again = run()
    assert again.schedule == wanted and len(FakeBench.built) == 2
    assert run().planning.tuning.from_cache is True  # type: ignore[union-attr]


def test_caches_that_are_off_are_neither_read_nor_written(tmp_path: Path) -> None:
    with config.patch(force_disable_caches=True):
        run()
        run()
    assert len(FakeBench.built) == 2 and files(tmp_path) == []


def failing(error: Exception) -> Callable[..., float]:
    def us(*_: Candidate) -> float:
        raise error

    return us


def test_a_failure_leaves_the_heuristics_schedule(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(FakeBench, "us", staticmethod(failing(RuntimeError("the device is lost"))))
    with pytest.warns(UserWarning, match="'tune'.*the device is lost"):
        record = run(LENIENT)
    assert record.planning.tuning is None and record.schedule == run(UNTUNED).schedule
    assert counters["mixorder"] == {"fused_regions": 2} and files(tmp_path) == []


def test_a_failure_is_raised_in_strict_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeBench, "us", staticmethod(failing(RuntimeError("the device is lost"))))
    graph = graphs.rms_norm_backward(32768, 768)
    before = graphs.snapshot(graph)
    with pytest.raises(MixorderError, match="the device is lost"):
        pipeline.run(graph, STRICT)
    assert graphs.snapshot(graph) == before


def test_too_little_memory_is_no_failure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(FakeBench, "us", staticmethod(failing(NotEnoughMemory("9 MB needed, 8 MB free"))))
    assert run().planning.tuning is None and files(tmp_path) == []


def problem(cols: int, make: Any = graphs.rms_norm_backward) -> tuner.Problem:
    merged = graphs.merged(graphs.only(make(8192, cols)))
    for strategy in STRATEGIES:
        with contextlib.suppress(Decline):
            loops, schedule = graphs.run_by(strategy, merged)
            start = tuner.Chosen(strategy, loops, strategy.facts(loops), schedule)
            return tuner.Problem("region0", "rms", merged, start, STRATEGIES, torch.device("cpu"), H200)
    raise AssertionError(cols)


def test_of_narrow_rows_only_what_was_chosen_is_timed() -> None:
    assert list(tuner.variants(problem(4096))) == ["persistent"]


@pytest.mark.parametrize("cols", [8192, 12288, 65536])
def test_wide_rows_are_tried_in_every_way(cols: int) -> None:
    found = problem(cols)
    starts = tuner.variants(found)
    singles = {"persistent"} if cols < 65536 else set()
    assert {name for name in starts if "programs" not in name} == singles
    assert sum("programs" in name for name in starts) >= 2
    assert next(iter(starts.values())) == found.chosen
    for name, start in starts.items():
        schedule, space = start.schedule, tuner._search_space(found, start)
        assert name == start.strategy.title(schedule)
        assert (schedule.group > 1) == ("programs" in name) == bool(start.loops.role(BufferRole.MAILBOX))
        assert space.legal(schedule)
        for near in space.near(schedule):
            assert near != schedule and space.legal(near)
            assert (near.group, near.tile_rows) == (schedule.group, schedule.tile_rows) or near.group == 1


def test_another_way_to_read_wide_rows_can_win(monkeypatch: pytest.MonkeyPatch) -> None:
    def us(candidate: Candidate) -> float:
        return 20.0 if "programs" in candidate.variant else 30.0

    monkeypatch.setattr(FakeBench, "us", staticmethod(us))
    plain = run(UNTUNED, graphs.rms_norm_backward(8192, 12288))
    tuned = run(STRICT, graphs.rms_norm_backward(8192, 12288))
    assert plain.schedule.group == 1 < tuned.schedule.group
    assert run(STRICT, graphs.rms_norm_backward(8192, 12288)).kernels == tuned.kernels


def test_where_there_is_no_gpu_nothing_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    device = torch.device("cuda", 0) if not torch.cuda.is_available() else torch.device("cpu")
    assert "no GPU" in str(tuner.reason_to_skip(device))
    assert run().planning.tuning is None


def test_the_thread_that_times_has_no_modes_but_the_same_config() -> None:
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

    with FakeTensorMode(), config.patch(max_autotune=True):
        assert isinstance(torch.empty(2), FakeTensor)
        made, seen = in_own_thread(lambda: (torch.ones(2), config.max_autotune))
    assert not isinstance(made, FakeTensor) and float(made.sum()) == 2.0 and seen


def test_buffers_have_the_strides_of_the_region_and_no_zeros() -> None:
    chosen = problem(768).chosen
    bench, program = Bench({"": chosen}, "rms", torch.device("cpu")), chosen.loops
    before = torch.random.get_rng_state()
    for buffer in program.buffers:
        tensor = bench._tensor(program, buffer.name, 132)
        assert tensor.dtype == buffer.dtype and tensor.dim() == len(buffer.shape)
        assert tensor.stride() == tuple(int(e.subs("num_splits", 132)) for e in buffer.stride)
        if buffer.role is BufferRole.INPUT:
            assert float(tensor.float().std()) > 0.3
    assert torch.equal(torch.random.get_rng_state(), before)
