"""What the user is told: counters, records, log lines, dump files, and a reason for every refusal."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import graphs
import pytest
import torch
from graphs import f32, node, pair, traced
from torch._dynamo.utils import counters
from torch.fx import Graph

from mixorder import pipeline
from mixorder.errors import Decline, DeclineReason
from mixorder.inductor import telemetry, versions
from mixorder.options import Options
from mixorder.report import Dump, RegionRecord, collect
from mixorder.schedule.device import MEASURED as H200

FULL = ((512, 256), f32)
SQUARE = ((256, 256), f32)
OPTIONS = Options(enabled=True, strict=True, interpret=True)


@pytest.fixture(autouse=True)
def fresh_counters() -> None:
    counters["mixorder"].clear()


def run(graph: Graph, options: Options = OPTIONS) -> list[RegionRecord | Decline]:
    with collect() as records:
        pipeline.run(graph, options)
    return records


def cycle() -> Graph:
    def function(x: Any, dy: Any, m: Any) -> Any:
        dw = (x * dy).sum(0)
        return (x * dy * (dw.reshape(1, 256) @ m)).sum(1), dw

    return traced(function, FULL, FULL, SQUARE)


def mutated() -> Graph:
    def function(x: Any, dy: Any, new: Any) -> Any:
        product = x * dy
        x.copy_(new)
        return dy - x * product.sum(-1, keepdim=True), product.sum(0)

    return traced(function, FULL, FULL, FULL, in_place=True)


def complex_input() -> Graph:
    return traced(lambda x, dy: pair(x.abs(), dy), ((512, 256), torch.complex64), FULL)


def with_value_of_x(make: Callable[[Any], Any]) -> Callable[[], Graph]:
    def graph() -> Graph:
        made = graphs.pair_graph()
        x = node(made, "x_1")
        with x.meta["val"].fake_mode as mode:
            x.meta["val"] = make(mode)
        return made

    return graph


def twelve_tiles_between_two_reductions() -> Graph:
    """The outer reduction needs the inner one, and all that the inner one has read: nothing to cut."""

    def function(*xs: Any) -> Any:
        row = sum(xs).sum(1, keepdim=True)
        total = xs[0] - row
        for x in xs[1:]:
            total = total * (x - row)
        return row, total.sum(0)

    return traced(function, *[((512, 8192), f32)] * 12)


def transposed() -> Graph:
    """Every large tensor lies across memory, and no access of several rows begins where the last one ends."""
    graph = graphs.pair_graph(513, 64)
    for name in ("x_1", "dy_1", "mul", "mul_1", "sub"):
        meta = node(graph, name).meta
        with meta["val"].fake_mode:
            meta["val"] = torch.empty((64, 513)).t()
    return graph


def symbolic_factor() -> Graph:
    """Both sums are of x multiplied by a symbolic number, which is no tensor and no size."""
    graph = traced(lambda x: ((x * 2).sum(0), (x * 2).sum(1)), FULL)
    (x, *_), multiplied = graph.nodes, [n for n in graph.nodes if n.target is torch.ops.aten.mul.Tensor]
    with graph.inserting_before(next(iter(graph.nodes))):
        number = graph.placeholder("number")
    number.meta["val"] = x.meta["val"].fake_mode.shape_env.create_unbacked_symfloat()
    for mul in multiplied:
        mul.args = (x, number)
    return graph


def sent_before_it_is_complete() -> Graph:
    """A sum goes into one collective before another gives what the region reads."""

    def function(x: Any, dy: Any, w: Any) -> Any:
        total = torch.ops._c10d_functional.all_reduce((x * dy).sum(0), "sum", "0")
        scaled = dy * torch.ops._c10d_functional.all_reduce(w, "avg", "0")
        return scaled - x * (x * scaled).sum(-1, keepdim=True), total

    return traced(function, FULL, FULL, ((256,), f32))


def of_odd_rows(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Each element is loaded alone, as no row but the first starts at a boundary."""
    y = x.tanh()
    return y, y.sum(0)


SMALLEST: dict[DeclineReason, Callable[[], Graph]] = {
    DeclineReason.ROW_TOO_WIDE: lambda: graphs.pair_graph(16, 16385, torch.float64),
    DeclineReason.SLOWER: lambda: traced(of_odd_rows, ((128, 769), torch.bfloat16)),
    DeclineReason.TOO_SMALL: lambda: graphs.pair_graph(63, 64),
    DeclineReason.CYCLE: cycle,
    DeclineReason.ORDER: sent_before_it_is_complete,
    DeclineReason.INPUT_MUTATED: mutated,
    DeclineReason.UNSUPPORTED_OP: lambda: traced(lambda x: (*x.max(1), x.sum(0)), FULL),
    DeclineReason.UNSUPPORTED_DTYPE: complex_input,
    DeclineReason.DYNAMIC_SHAPE: with_value_of_x(
        lambda mode: torch.empty_strided((512, 256), (mode.shape_env.create_unbacked_symint(), 1))
    ),
    DeclineReason.LAYOUT: transposed,
    DeclineReason.NUMERICS: graphs.pair_graph,
    DeclineReason.MIXED_DEVICE: with_value_of_x(lambda mode: torch.empty((512, 256), device="meta")),
    DeclineReason.MEMORY: lambda: traced(
        lambda x, row, w: (
            (y := (c := (x + row).cumsum(0)).sigmoid()).sum(0),
            y @ w,
            (z := c.cos()).sum(0),
            z @ w,
        ),
        *(((4096, 1), f32), ((256,), f32), ((256, 8), f32)),
    ),
    DeclineReason.AXIS_CLASS: lambda: traced(lambda x: (x.sum((0, 1)), x.sum((1, 2))), ((64, 16, 256), f32)),
    DeclineReason.TOO_MANY_LIVE_TILES: twelve_tiles_between_two_reductions,
}


@pytest.mark.parametrize("reason", DeclineReason, ids=lambda r: r.value)
def test_every_reason_is_raised_by_its_smallest_graph(
    reason: DeclineReason,
    said: Callable[[], list[str]],
    plan_with: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    graph = SMALLEST[reason]()
    if reason is DeclineReason.NUMERICS:  # a setting that some versions have
        monkeypatch.setattr(versions, "promises_bits", lambda _: "numerics='strict'")
    if reason is DeclineReason.TOO_MANY_LIVE_TILES:  # the H200 holds the smallest part of any region
        small = dataclasses.replace(H200, registers=16384, exchanges=False)
        plan_with(device=small)
    before = graphs.snapshot(graph)
    (decline,) = run(graph)
    assert isinstance(decline, Decline) and decline.reason is reason
    assert graphs.snapshot(graph) == before
    assert counters["mixorder"] == {f"declined:{reason.value}": 1}
    # What a user reads names operators, but no node of the graph.
    nodes = {n.name for n in graph.nodes if n.op != "placeholder"}
    assert not nodes & set(re.findall(r"[\w.]+", decline.detail))
    line, total = said()
    assert reason.value in line and reason.explanation in line and decline.detail in line
    assert total.startswith("0 regions fused, 1 declined, in ")


def test_a_product_with_a_number_of_the_data_is_read() -> None:
    """The kernels cannot compute the number; the sums are fused without the product."""
    (record,) = run(symbolic_factor())
    assert isinstance(record, RegionRecord) and {"mul"} <= {one.name for one in record.inputs}


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda x, m: (x.argmax(1), x.sum(0)), "argmax along rows and sum over rows"),
        (lambda x, m: (*x.max(1), x.sum(0)), "max along rows and sum over rows"),
        (lambda x, m: (x.sum(1), x.min(0)), "sum along rows and min over rows"),
        (lambda x, m: (x.sum(1), x.var(0)), "sum along rows and var over rows"),
        (lambda x, m: (x.sum(1), *torch.var_mean(x.exp(), 0)), None),  # it takes the mean
        (lambda x, m: (x.argmax(1), x.var(1)), None),
        (lambda x, m: (x.argmax(1), m.sum(0)), None),
        (lambda x, m: (x.max(1).values, x.sum(0)), None),
    ],
)
def test_two_reductions_that_are_in_no_region_have_a_reason(function: Any, said: str | None) -> None:
    outcomes = run(traced(function, FULL, FULL))
    found = [e for e in outcomes if isinstance(e, Decline)]
    assert [e.reason for e in found] == [DeclineReason.UNSUPPORTED_OP] * (said is not None)
    assert said is None or (said in found[0].detail and found[0].provenance is not None)


def test_a_decline_names_its_node() -> None:
    (decline,) = run(mutated())
    assert isinstance(decline, Decline)
    assert decline.node_name == "x_1" and str(decline).endswith("(at %x_1)")


def test_record_of_a_fused_region(said: Callable[[], list[str]]) -> None:
    (record,) = run(graphs.layer_norm_backward(4096, 256))
    assert isinstance(record, RegionRecord)
    assert (record.name, record.space.rows, record.space.cols) == ("region0", 4096, 256)
    assert (len(record.inner), len(record.outer), len(record.kernels)) == (2, 2, 2)
    assert counters["mixorder"] == {"fused_regions": 1}
    line, total = said()
    assert all(word in line for word in ("region0", "4096x256", record.kernels[0].name))
    assert f"(the pass took {record.planning.pass_ms:.1f} ms)" in line
    assert total.startswith("1 region fused, 0 declined, in ")


def test_record_says_what_the_pass_took_and_compares_without() -> None:
    first, second = (run(graphs.pair_graph(4096))[0] for _ in range(2))
    assert isinstance(first, RegionRecord) and isinstance(second, RegionRecord)
    stages = dict(first.planning.stage_ms)
    assert {"find", "lower", "schedule", "codegen", "rewrite"} <= stages.keys()
    assert all(ms > 0 for ms in stages.values()) and first.planning.pass_ms == sum(stages.values())
    assert (
        first.planning.pass_ms != second.planning.pass_ms
        and first == second
        and "stage_ms" not in repr(first)
    )


def test_a_graph_without_pairs_is_not_worth_a_line_or_an_artifact(
    said: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    names: list[str] = []
    trace = lambda name, metadata_fn, **_: names.append(metadata_fn()["name"])  # noqa: E731
    monkeypatch.setattr(telemetry, "trace_structured", trace)
    assert not run(traced(lambda x, dy: torch.tanh(x) * dy, FULL, FULL))
    assert not said() and not names
    run(graphs.pair_graph())
    assert names == ["mixorder"]


def test_collectors_nest_and_end() -> None:
    with collect() as outer:
        with collect() as inner:
            pipeline.run(graphs.pair_graph(4096), OPTIONS)
        pipeline.run(graphs.pair_graph(63, 64), OPTIONS)
    pipeline.run(graphs.pair_graph(4096), OPTIONS)
    assert [type(r) for r in inner] == [RegionRecord]
    assert [type(r) for r in outer] == [RegionRecord, Decline]


def test_dump_has_one_numbered_file_per_stage(tmp_path: Path) -> None:
    run(graphs.pair_graph(4096), Options(**{**vars(OPTIONS), "dump_dir": str(tmp_path)}))
    (graph_dir,) = tmp_path.iterdir()
    names = sorted(p.name for p in (graph_dir / "region0").iterdir())
    assert names == [
        "00_fx.txt", "01_region.txt", "02_loops.txt", "03_split.txt", "04_merged.txt",
        "05_plan.txt", "06_kernel.py", "07_fx_after.txt",
    ]  # fmt: skip
    texts = {p.name: p.read_text() for p in (graph_dir / "region0").iterdir()}
    assert texts["03_split.txt"].count("partial_accumulate") == 1
    assert "@triton.jit" in texts["06_kernel.py"]
    assert "triton_kernel_wrapper_functional" in texts["07_fx_after.txt"]
    assert "triton_kernel_wrapper_functional" not in texts["00_fx.txt"]


def test_dump_of_a_declined_region_ends_with_the_reason(tmp_path: Path) -> None:
    options = Options(**{**vars(OPTIONS), "dump_dir": str(tmp_path)})
    run(graphs.pair_graph(63, 64), options)
    files = sorted(p for p in tmp_path.rglob("*") if p.is_file())
    assert files[-1].name.endswith("_declined.txt")
    assert "too-small" in files[-1].read_text()


def test_no_dump_without_a_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run(graphs.pair_graph())
    Dump("").write("region0", "fx.txt", "text")
    assert list(tmp_path.iterdir()) == []


SCRIPT = """
import torch, mixorder
from torch import nn
model = nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 32))
options = {"mixorder_min_numel": 0, "mixorder_strict": True}
mixorder.explain(model, options=options)(torch.randn(8, 32, requires_grad=True))
"""


def test_torch_logs_and_the_trace_that_tlparse_reads(tmp_path: Path) -> None:
    env = {**os.environ, "TORCH_LOGS": "+mixorder", "TORCH_TRACE": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "region0: fused 8x32" in done.stderr and "1 region fused, 0 declined" in done.stderr
    (trace,) = tmp_path.iterdir()
    lines = trace.read_text().splitlines()
    (at,) = (i for i, line in enumerate(lines) if '"artifact": {"name": "mixorder"' in line)
    head = json.loads(lines[at][lines[at].index("{") :])
    assert head["artifact"]["encoding"] == "json" and "frame_id" in head  # tlparse files it under its compile
    payload = [line.removeprefix("\t") for line in lines[at + 1 :]]
    end = next((i for i, line in enumerate(payload) if line == "]"), None)
    (record,) = json.loads("\n".join(payload[: None if end is None else end + 1]))
    assert record["name"] == "region0" and "@triton.jit" in record["kernels"][0]["text"]
    assert record["provenance"]["modules"][0] == ["0", "LayerNorm"]
