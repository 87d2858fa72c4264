"""What a region is expected to take, against the measurements that the figures come from."""

from __future__ import annotations

import dataclasses
import functools
import statistics
from collections.abc import Iterator
from pathlib import Path

import graphs
import pytest
import torch
from graphs import bf16, f32
from lab.schedules import Target, read
from torch import nn

from mixorder.report import RegionRecord, collect
from mixorder.schedule.device import H200
from mixorder.schedule.facts import facts_of
from mixorder.schedule.predicted import Expected

ROOT = Path(__file__).resolve().parents[2]

NORMS = {"rms": graphs.rms_norm_backward, "layer": graphs.layer_norm_backward}


def record_of(norm: str, rows: int, cols: int, dtype: object = bf16) -> RegionRecord:
    from mixorder import pipeline
    from mixorder.options import Options

    with collect() as records:
        pipeline.run(NORMS[norm](rows, cols, dtype), Options(enabled=True, strict=True, interpret=True))
    (record,) = records
    assert isinstance(record, RegionRecord)
    return record


def swept(kind: str) -> Iterator[tuple[int, int, Target]]:
    """Rows, columns and the sweep of each target of a kind."""
    for target in read(ROOT / "tools" / "data" / "h200.json").targets:
        if target.name.startswith(f"{kind} "):
            rows, cols = map(int, target.name.removeprefix(f"{kind} ").split("x"))
            yield rows, cols, target


@pytest.mark.parametrize("norm", NORMS)
def test_share_of_the_limit_is_near_what_was_measured(norm: str) -> None:
    off = []
    for rows, cols, target in swept(norm):
        if cols % 16:
            continue
        found = record_of(norm, rows, cols).expected
        best = min(row.us for row in target.rows if row.us)
        assert found.limit_us == pytest.approx(target.limit_us, rel=0.06)
        off.append(abs(found.share - target.limit_us / best))
    assert len(off) == 21
    assert max(off) < 0.09 and statistics.mean(off) < 0.04


GELU = {"gelu": nn.GELU, "gelu-tanh": functools.partial(nn.GELU, approximate="tanh")}


@pytest.mark.parametrize("kind", GELU)
def test_instructions_take_their_time_as_was_measured(kind: str) -> None:
    from mixorder import pipeline
    from mixorder.options import Options

    activation, checked = GELU[kind](), 0
    for rows, cols, target in swept(kind):
        if rows * cols < 2**26:
            continue

        def backward(dy: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            dx = torch.ops.aten.gelu_backward(dy, x, approximate=activation.approximate)
            return dx, dx.sum(0)

        with collect() as records:
            graph = graphs.traced(backward, ((rows, cols), bf16), ((rows, cols), bf16))
            pipeline.run(graph, Options(enabled=True, strict=True, interpret=True))
        (record,) = records
        assert isinstance(record, RegionRecord)
        best = min(row.us for row in target.rows if row.us)
        assert record.expected.fused_us == pytest.approx(best, rel=0.06)
        checked += 1
    assert checked == 3


def test_rows_off_a_boundary_and_rows_read_twice_take_longer() -> None:
    aligned, odd = (record_of("rms", 32768, cols).expected for cols in (4096, 4097))
    assert odd.share == pytest.approx(0.70, abs=0.05)  # docs/tuning.md, section 15
    assert aligned.share > 0.9
    twice = record_of("rms", 4096, 16384, graphs.f64)
    assert twice.strategy == "reread"
    assert record_of("rms", 16384, 16384).strategy.startswith("cooperative, ")
    assert record_of("rms", 32768, 768).strategy == "persistent"


def test_launches() -> None:
    held, shared = record_of("layer", 4096, 4096).expected, record_of("layer", 4096, 16384).expected
    assert (held.launches, held.launches_apart) == (2, 3)
    assert (shared.launches, shared.launches_apart) == (3, 3)  # the words are filled first
    from mixorder import pipeline
    from mixorder.options import Options

    with collect() as records:
        pipeline.run(graphs.pair_graph(64, 2048, f32), Options(True, min_numel=0, interpret=True))
    (record,) = records
    assert (
        isinstance(record, RegionRecord) and record.expected.launches_apart == 2
    )  # 64 rows: Inductor does not split


def test_another_device_has_its_own_bandwidth() -> None:
    from mixorder.schedule.cost import Traffic
    from mixorder.schedule.predicted import expected

    record = record_of("rms", 32768, 4096)

    def on(device: object) -> Expected:
        moved: Traffic = record.traffic
        facts = facts_of(record.loops)
        return expected(record.apart, record.loops, record.schedule, facts, moved, device, 1.0, 0)  # type: ignore[arg-type]

    half = on(dataclasses.replace(H200, name="another", bandwidth=H200.bandwidth / 2))
    assert half.limit_us == pytest.approx(2 * on(H200).limit_us, rel=0.05)
    assert on(H200).measured and not half.measured
    unknown = on(dataclasses.replace(H200, name="another", bandwidth=0.0))
    assert unknown.limit_us == on(H200).limit_us and not unknown.measured
