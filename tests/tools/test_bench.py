"""The benchmark's parts that need no GPU: reference, tables, targets, options, failures."""

import argparse
import ctypes
import json
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import bench
import graphs
import pytest
import torch
import torch.nn.functional as F
from lab import backward, providers, report, tables, timing
from lab.processes import EXIT_TIMEOUT
from lab.results import Case, Report, Result, Row

from mixorder import pipeline
from mixorder.inspection.accuracy import relative_error
from mixorder.options import Options

TOOLS = Path(__file__).resolve().parents[2] / "tools"


def timed_row(norm: str = "rms", shape: str = "4096x4096", **times: float) -> Row:
    """A row whose limit takes 10 us; `times` are microseconds per provider."""
    rows, cols = map(int, shape.split("x"))
    results = {name: Result("ok", us=us) for name, us in times.items()}
    return Row(Case(norm, "bf16", "bf16", rows, cols), [9.9, 10.1], results)


@pytest.mark.parametrize("norm", ["rms", "layer"])
@pytest.mark.parametrize("shape", [(1, 1), (5, 1), (1, 9), (33, 7), (64, 96)])
def test_reference_is_autograd_in_float64(norm: str, shape: tuple[int, int]) -> None:
    inputs = backward.make_inputs(Case(norm, "bf16", "fp32", *shape), "cpu")
    x, w, *b = (t.detach().double().requires_grad_() for t in inputs.leaves())
    cols = (shape[1],)
    y = F.rms_norm(x, cols, w, inputs.eps) if b == [] else F.layer_norm(x, cols, w, b[0], inputs.eps)
    expected = torch.autograd.grad(y, [x, w, *b], inputs.dy.double())
    for chunk_elements in (1, 16, 2**24):
        actual = backward.reference_gradients(inputs, chunk_elements)
        torch.testing.assert_close(actual, list(expected), rtol=1e-11, atol=1e-11)


def test_relative_error_does_not_depend_on_chunks() -> None:
    expected = torch.randn(37, 11, dtype=torch.float64)
    actual = (expected + 1e-2 * torch.randn_like(expected)).bfloat16()
    direct = ((actual.double() - expected).norm() / expected.norm()).item()
    for chunk_elements in (1, 100, 2**24):
        error = relative_error(actual, expected, chunk_elements)
        assert error == pytest.approx(direct, rel=1e-12)


def test_relative_error_of_zero_reference_and_wrong_shape() -> None:
    zeros = torch.zeros(3, 4, dtype=torch.float64)
    assert relative_error(torch.full((3, 4), 2.0), zeros) == pytest.approx(48**0.5)
    assert relative_error(zeros, zeros) == 0
    with pytest.raises(ValueError, match="shape"):
        relative_error(torch.zeros(4, 3), zeros)


class FakeDriver:
    """Answers as the CUDA driver does for a graph with nodes of the given types."""

    def __init__(self, kinds: Sequence[int], status: int = 0) -> None:
        self.kinds, self.status = kinds, status

    def cuGraphGetNodes(self, graph: Any, nodes: Any, count: Any) -> int:  # noqa: N802
        count._obj.value = len(self.kinds)
        for i in range(len(self.kinds) if nodes else 0):
            nodes[i] = i + 1
        return self.status

    def cuGraphNodeGetType(self, node: ctypes.c_void_p, kind: Any) -> int:  # noqa: N802
        kind._obj.value = self.kinds[(node.value or 0) - 1]
        return 0


def test_graph_nodes_are_counted_by_kind() -> None:
    counts = timing.count_graph_nodes(1, FakeDriver([0, 2, 0, 1, 5]))
    assert counts == {"kernels": 2, "memsets": 1, "memcpys": 1, "other": 1}
    with pytest.raises(RuntimeError, match="400"):
        timing.count_graph_nodes(1, FakeDriver([], status=400))


def test_table_is_aligned() -> None:
    assert tables.table(["M x N", "us"], [["1x1", "3.5"], ["1000000x256", "1200.0"]]).split("\n") == [
        "| M x N       | us     |",
        "| ---         | ---    |",
        "| 1x1         | 3.5    |",
        "| 1000000x256 | 1200.0 |",
    ]


def cells(table: str) -> list[str]:
    """Those of a table's last line."""
    return [cell.strip() for cell in table.split("\n")[-1].strip("|").split("|")]


def test_share_table_cells() -> None:
    row = timed_row(stock=20.0, mixorder=12.5)
    row.results |= {"eager": Result("err", "boom", us=1.0), "liger": Result("absent")}
    names = ["stock", "mixorder", "eager", "liger", "quack"]
    expected = ["4096x4096", "10.0", "2.0%", "50.0", "80.0", "err", "-", "-"]
    assert cells(report.share_table([row], names)) == expected
    row.limit_medians.clear()
    assert cells(report.share_table([row], ["mixorder"]))[1:] == ["-", "-", "12.5 us"]


def test_detail_table_shows_launches_and_errors() -> None:
    row = timed_row(stock=20.0)
    row.results["stock"].launches = {"kernels": 3, "memsets": 1, "memcpys": 0}
    row.results["stock"].errors = {"dx": 1.5e-3, "dw": 2e-3}
    row.results["stock"].repeatable = False
    expected = "4096x4096 stock 20.0 3 1 0 1.50e-03 2.00e-03 - NO"
    assert " ".join(cells(report.detail_table([row]))) == expected


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ({"mixorder": 12.0, "stock": 15.0}, []),
        ({"mixorder": 12.0, "mixorder_tuned": 11.0}, []),
        ({"stock": 15.0}, []),
        ({"mixorder": 12.0, "stock_tuned": 11.0}, ["stock_tuned is faster"]),
        ({"mixorder": 13.0, "stock": 15.0}, ["76.9% of the limit, target 78%"]),
        ({"mixorder": 13.0, "quack": 12.5}, ["quack is faster", "target 78%"]),
    ],
)
def test_issues(times: dict[str, float], expected: list[str]) -> None:
    issues = report.find_issues([timed_row(**times)], {"rms": {"4096x4096": 78}})
    assert len(issues) == len(expected)
    for issue, text in zip(issues, expected, strict=True):
        assert issue.startswith("rms bf16 4096x4096: ") and text in issue


def test_failed_mixorder_is_an_issue() -> None:
    row = timed_row(stock=15.0)
    row.results["mixorder"] = Result("err", "Boom: no\nkernel")
    assert report.find_issues([row], {}) == ["rms bf16 4096x4096: mixorder err: Boom: no kernel"]


def test_committed_targets_cover_the_default_shapes() -> None:
    targets = bench.parse_targets(str(TOOLS / "targets.json"))
    assert set(targets) == {"rms", "layer"}
    assert all(set(of_norm) >= set(bench.SHAPES.split(",")) for of_norm in targets.values())


def test_arguments() -> None:
    argv = (
        "--shapes 8x4,16x2 --norm layer --dtype bf16,fp32 --weight-dtype fp32 --cpu-smoke "
        """--providers stock,limit,eager --deadline 5 --targets '{"rms": {"8x4": 50}}'"""
    )
    args = bench.parse_args(shlex.split(argv))
    assert args.shapes == [(8, 4), (16, 2)]
    assert args.cases == [
        Case("layer", dtype, "fp32", *shape) for dtype in ("bf16", "fp32") for shape in args.shapes
    ]
    assert args.providers == ["stock", "limit", "eager"] and args.total == 8
    assert args.targets == {"rms": {"8x4": 50}} and not args.timed


@pytest.mark.parametrize(
    "argv",
    [
        ["--shapes", "8by4"],
        ["--norm", "batch"],
        ["--dtype", "fp8"],
        ["--providers", "eager,nobody"],
        ["--targets", "no-such-file.json"],
        ["--targets", "{"],
    ],
)
def test_bad_arguments_are_refused(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        bench.parse_args(argv)
    assert argv[0] in capsys.readouterr().err


def test_unknown_options_are_skipped() -> None:
    usable, skipped = bench.usable_options({"triton.cudagraphs": False, "triton.nonsense": 1})
    assert usable == {"triton.cudagraphs": False} and skipped == ["triton.nonsense"]


def run_smoke(out: Path, providers: str) -> tuple[int, Report]:
    argv = f"--cpu-smoke --providers {providers} --shapes 24x40 --dtype fp32 --out {out}"
    return bench.main(argv.split()), Report.load(out / "bench.json")


def test_eager_and_stock_on_the_cpu(tmp_path: Path) -> None:
    status, report = run_smoke(tmp_path, "limit,eager,stock")
    assert status == 0
    for row in report.rows:
        assert list(row.results) == ["eager", "stock"]
        for result in row.results.values():
            assert result.status == "ok", result.error
            assert max(result.errors.values()) < 1e-6
            assert set(result.errors) == {"dx", "dw", *(["db"] if row.case.norm == "layer" else [])}


def test_failing_providers_do_not_stop_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(case: Case) -> backward.Forward:
        raise RuntimeError("no kernel\nfor you")

    def absent(case: Case) -> backward.Forward:
        raise providers.Absent("not installed")

    def infinite(case: Case) -> backward.Forward:
        return lambda x, w, b: x * w * torch.inf + (0 if b is None else b)

    monkeypatch.setattr(
        bench,
        "PROVIDERS",
        {"broken": broken, "absent": absent, "infinite": infinite, "eager": providers._norm},
    )
    status, report = run_smoke(tmp_path, "broken,absent,infinite,eager")
    assert status == bench.EXIT_FAILED
    for row in report.rows:
        states = {name: result.status for name, result in row.results.items()}
        assert states == {"broken": "err", "absent": "absent", "infinite": "err", "eager": "ok"}
        assert row.results["broken"].error == "RuntimeError: no kernel\nfor you"
        assert "not finite: dx, dw" in row.results["infinite"].error
    text = capsys.readouterr().out
    assert "broken: RuntimeError: no kernel for you" in text
    assert any(line.split()[3:6:2] == ["broken", "err"] for line in text.splitlines() if line)


def test_a_run_goes_on_where_the_last_process_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Three workers: killed in `stock`, timed out in `liger`, then one that finishes."""
    path = tmp_path / "bench.json"
    report = Report({"started": 0.0}, [timed_row(eager=20.0)])
    endings = iter([("stock", -11), ("liger", EXIT_TIMEOUT), ("quack", 0)])

    def worker(command: list[str], env: dict[str, str]) -> int:
        assert (
            command[-1] == "--worker" and not {"MIXORDER", "TORCHINDUCTOR_MIX_ORDER_REDUCTION"} & env.keys()
        )
        name, status = next(endings)
        current = Report.load(path) if path.exists() else report
        current.rows[0].results[name] = Result("running" if status else "ok")
        current.save(path)
        return status

    monkeypatch.setenv("TORCHINDUCTOR_MIX_ORDER_REDUCTION", "1")
    monkeypatch.setenv("MIXORDER", "1")
    monkeypatch.setattr(bench.subprocess, "call", worker)
    args = argparse.Namespace(out=tmp_path, timed=True, targets={}, providers=["eager"], total=1)
    assert bench.supervise([], args) == 0
    results = Report.load(path).rows[0].results
    assert results["stock"].error == "ended its process with status -11"
    assert results["liger"].error == "took longer than --time-box"
    assert results["quack"].status == "ok"


def test_a_run_that_achieves_nothing_ends_with_a_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "bench.json"
    Report({"started": 0.0, "device": "none"}, [timed_row(eager=20.0)]).save(path)
    calls: list[list[str]] = []
    monkeypatch.setattr(bench.subprocess, "call", lambda c, env: calls.append(c) or 1)
    args = argparse.Namespace(out=tmp_path, timed=True, targets={}, providers=["eager"], total=1)
    assert bench.supervise([], args) == 1
    assert len(calls) == 2  # the first one may have measured `eager`
    assert "50.0" in capsys.readouterr().out


def test_what_a_provider_fuses_is_noted() -> None:
    result = Result("ok")
    with bench.fusions_into(result):
        options = Options(enabled=True, strict=True, interpret=True, min_numel=0)
        pipeline.run(graphs.layer_norm_backward(64, 32), options)
    assert re.fullmatch(
        r" region0: persistent, tile = Tile\(.*\), r0_block = 32, .*, not tuned;", result.note
    )


def test_times_taken_in_turns_replace_those_taken_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """All graphs get turns in the order of the row; what was not kept has the time that it took alone."""
    row = timed_row(stock=20.0, quack=15.0, mixorder=12.5)
    row.limit_medians = [7.0, 7.5, 11.0]  # two of a process that ended, and the first of this one
    asked: dict[str, float] = {}

    def turns(graphs: dict[str, Any], stream: Any, flush: Any) -> dict[str, timing.Times]:
        asked.update({name: row.results[name].us if name in row.results else 11.0 for name in graphs})
        return {name: timing.Times((us / 2, us, us * 2, us)) for name, us in asked.items()}

    monkeypatch.setattr(backward, "time_in_turns", turns)
    setup = backward.Setup("cuda", stream=object(), flush=object())  # type: ignore[arg-type]
    graph: Any = object()
    bench.take_turns(row, {"limit": graph, "stock": graph, "mixorder": graph}, setup)
    assert list(asked) == ["limit", "stock", "mixorder"]
    assert row.limit_medians == [7.0, 7.5, 8.25, 16.5]
    ours, quack = row.results["mixorder"], row.results["quack"]
    assert (ours.us, ours.us_min, ours.us_max, ours.reps, ours.alone_us) == (12.5, 6.25, 25.0, 4, 12.5)
    assert quack.us == 15.0 and quack.alone_us is None


def test_report_survives_json(tmp_path: Path) -> None:
    report = Report({"started": 1.5, "device": "x"}, [timed_row(eager=20.0, mixorder=11.0)])
    report.save(tmp_path / "bench.json")
    assert Report.load(tmp_path / "bench.json") == report
    derived = json.loads((tmp_path / "bench.json").read_text())["rows"][0]["derived"]
    assert derived["limit_us"] == pytest.approx(10.0)
    assert derived["share_percent"]["eager"] == pytest.approx(50.0)
