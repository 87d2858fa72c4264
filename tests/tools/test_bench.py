"""The benchmark's parts that need no GPU: reference, tables, targets, options, failures."""

import contextlib
import ctypes
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import bench
import pytest
import torch
import torch.nn.functional as F
from lab import backward, providers, report, timing
from lab.backward import Absent, Case, Result, Row, Task
from lab.pool import Broken
from lab.stopwatch import Host, Timed

from mixorder.inspection.accuracy import relative_error


def timed_row(norm: str = "rms", shape: str = "4096x4096", **times: float) -> Row:
    """A row whose limit takes 10 us; `times` are microseconds per provider."""
    rows, cols = map(int, shape.split("x"))
    results = {name: Result(us) for name, us in times.items()}
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


def cells(table: str) -> list[str]:
    """Those of a table's last line."""
    return [cell.strip() for cell in table.split("\n")[-1].strip("|").split("|")]


def test_share_table_cells() -> None:
    row = timed_row(stock=20.0, mixorder=12.5)
    row.results |= {"eager": Result(1.0, "boom"), "liger": Result(error="none", absent=True)}
    names = ["stock", "mixorder", "eager", "liger", "quack"]
    expected = ["4096x4096", "10.0", "2.0%", "50.0", "80.0", "err", "-", "-"]
    assert cells(report.share_table([row], names)) == expected
    row.limit_medians.clear()
    assert cells(report.share_table([row], ["mixorder"]))[1:] == ["-", "-", "12.5 us"]


def test_eager_and_stock_on_the_cpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = (
        f"--cpu-smoke --norm layer --providers limit,eager,stock --shapes 24x40 --out {tmp_path} --dtype fp32"
    )
    assert bench.main(argv.split()) == 0
    (row,) = [json.loads(line) for line in (tmp_path / "bench.jsonl").read_text().splitlines()]
    assert list(row["results"]) == ["eager", "stock"]
    for result in row["results"].values():
        assert not result["error"] and result["repeatable"]
        assert max(result["errors"].values()) < 1e-6 and set(result["errors"]) == {"dx", "dw", "db"}
    assert capsys.readouterr().out == (tmp_path / "report.txt").read_text()


def broken(case: Case) -> backward.Forward:
    raise RuntimeError("no kernel\nfor you")


def absent(case: Case) -> backward.Forward:
    raise Absent("not installed")


def infinite(case: Case) -> backward.Forward:
    return lambda x, w, b: x * w * torch.inf + (0 if b is None else b)


@pytest.mark.parametrize("norm", ["rms", "layer"])
def test_failing_providers_do_not_stop_the_others(norm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = {"broken": broken, "absent": absent, "infinite": infinite, "eager": providers._norm}
    monkeypatch.setattr(providers, "PROVIDERS", made)
    row = backward.work(Task(Case(norm, "fp32", "fp32", 24, 40), tuple(made), "cpu"))
    assert not row.lost and row.results["absent"].absent
    assert row.results["broken"].error == "RuntimeError: no kernel\nfor you"
    assert "not finite: dx, dw" in row.results["infinite"].error
    assert not row.results["eager"].error and row.results["eager"].errors["dx"] < 1e-6


def test_providers_of_a_row_that_ended_are_run_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One of them crashes its process, alone as with the others."""
    asked: list[tuple[str, ...]] = []

    class Pool:
        def run(self, tasks: Sequence[Task], limit: float, until: float) -> Iterator[tuple[Task, Any]]:
            for task in tasks:
                asked.append(task.providers)
                results = {name: Result(20.0) for name in task.providers}
                crashes = "liger" in task.providers
                yield task, Broken("crashed", -11) if crashes else Row(task.case, [9.0, 11.0], results)

    monkeypatch.setattr(bench, "measuring", lambda *_: contextlib.nullcontext((Pool(), "")))
    names = ["stock", "liger", "mixorder"]
    args = bench.parse_args(f"--norm rms --shapes 8x4 --providers {','.join(names)} --out {tmp_path}".split())
    (row,) = bench.measured(args)
    assert asked == [tuple(names), *((name,) for name in names)]
    assert row.results["liger"].reason == "its process crashed, exit code -11"
    assert (row.share("stock"), row.share("liger"), row.share("mixorder")) == (50.0, None, 50.0)
    assert row.limit_medians == [9.0, 11.0, 9.0, 11.0]


def test_all_are_timed_in_turns_with_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, but for the stopwatch."""
    asked: list[str] = []

    class Watch(Host):
        def time(self, calls: Mapping[str, Any]) -> dict[str, Timed]:
            asked.extend(calls)
            return {name: Timed(timing.Times((3.0, 4.0, 5.0, 6.0)), {"kernels": 2}) for name in calls}

    monkeypatch.setattr(backward, "stopwatch", lambda device: Watch())
    monkeypatch.setattr(
        backward, "make_inputs", lambda case, device, make=backward.make_inputs: make(case, "cpu")
    )
    row = backward.work(Task(Case("rms", "fp32", "fp32", 24, 40), ("eager",), "cuda"))
    assert asked == ["limit", "eager"] and row.limit_medians == [3.5, 5.5]
    assert (row.results["eager"].us, row.results["eager"].launches) == (4.5, {"kernels": 2})


def losing(case: Case) -> backward.Forward:
    raise RuntimeError("CUDA error: an illegal memory access was encountered")


def test_a_lost_device_ends_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(providers, "PROVIDERS", {"losing": losing, "eager": providers._norm})
    row = backward.work(Task(Case("rms", "fp32", "fp32", 24, 40), ("losing", "eager"), "cpu"))
    assert row.lost and all("CUDA error" in result.error for result in row.results.values())


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ({"mixorder": 12.0, "stock": 15.0}, []),
        ({"mixorder": 12.0, "mixorder_tuned": 11.0}, []),
        ({"stock": 15.0}, []),
        ({"mixorder": 12.0, "stock_tuned": 11.0}, ["stock_tuned is faster"]),
        ({"mixorder": 13.0, "quack": 12.5}, ["quack is faster"]),
    ],
)
def test_issues(times: dict[str, float], expected: list[str]) -> None:
    issues = report.find_issues([timed_row(**times)])
    assert len(issues) == len(expected)
    for issue, text in zip(issues, expected, strict=True):
        assert issue.startswith("rms bf16 4096x4096: ") and text in issue


def test_failed_mixorder_is_an_issue() -> None:
    row = timed_row(stock=15.0)
    row.results["mixorder"] = Result(error="Boom: no\nkernel")
    assert report.find_issues([row]) == ["rms bf16 4096x4096: mixorder failed: Boom: no kernel"]


def test_a_chart_has_as_many_shapes_as_can_be_read() -> None:
    rows = [Row(Case("rms", "bf16", "bf16", 2**n, 64)) for n in range(21)]
    shown = report.charted(rows)
    assert (
        len(shown) == 5
        and (shown[0], shown[-1]) == (rows[0], rows[-1])
        and report.charted(rows[:2]) == rows[:2]
    )
