"""Duels without a GPU: one from end to end in the interpreter, the records, the report of made-up results."""

import dataclasses
import json
import math
import multiprocessing
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from lab import duel_report
from lab.corpus import Entry, Input, Place, save
from lab.duel import moved
from lab.duels import Duel, Way, load, parse
from lab.exact import NoReference, exact
from lab.processes import EXIT_TIMEOUT, Turn
from lab.stopwatch import medians_of_rounds
from support import compilers
from torch.fx.experimental.proxy_tensor import make_fx

aten, prims = torch.ops.aten, torch.ops.prims
TOOLS = Path(__file__).resolve().parents[2] / "tools"


def norm(x: torch.Tensor, dy: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Of bf16, with an inner and an outer reduction in fp32."""
    wide = prims.convert_element_type.default(x, torch.float32)
    g = prims.convert_element_type.default(dy, torch.float32)
    dx = g - wide * aten.mean.dim(g * wide, [1], True)
    return prims.convert_element_type.default(dx, torch.bfloat16), aten.sum.dim_IntList(g * wide, [0])


# The parts of a duel.


def test_float64_rounds_nowhere() -> None:
    x, dy = (torch.randn(8, 16).bfloat16() for _ in range(2))
    dx, dw = exact(make_fx(norm)(x, dy), [x, dy])
    assert dx.dtype == dw.dtype == torch.float64
    wide, g = x.double(), dy.double()
    torch.testing.assert_close(dx, g - wide * (g * wide).mean(1, keepdim=True), rtol=0, atol=1e-14)


def test_float64_keeps_integers_and_widens_constants() -> None:
    def graph(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        count = prims.convert_element_type.default(x, torch.int32)
        return count, count + aten.full.default([4], 0.1, dtype=torch.float32)

    x = torch.tensor([1.5, 2.5, -1.0, 0.0])
    count, total = exact(make_fx(graph)(x), [x])
    assert count.dtype == torch.int32 and total.dtype == torch.float64
    assert total[3].item() == 0.1  # not fp32's


@pytest.mark.parametrize(
    "graph",
    [
        lambda x: aten.view.dtype(x, torch.int32),
        lambda x: aten.bernoulli.p(x, 0.5),
    ],
)
def test_bits_and_random_numbers_have_no_reference(graph: Any) -> None:
    x = torch.rand(4)
    with pytest.raises(NoReference):
        exact(make_fx(graph)(x), [x])


def test_a_broadcast_tensor_counts_as_what_is_in_memory() -> None:
    assert moved([torch.empty(8).expand(100, 8), 3, torch.empty(0)], [torch.empty(2, 2)]) == 4 * (8 + 4)


def test_kernels_of_rounds_without_the_flush() -> None:
    flush = "void at::native::vectorized_elementwise_kernel<16, at::native::FillFunctor<unsigned char>>"
    rounds = [(flush, 90.0), ("a", 3.0), ("b", 1.0), (flush, 91.0), ("a", 5.0), ("b", 1.0)]
    rounds += [(flush, 90.0), ("a", 4.0), ("b", 9.0)]
    assert medians_of_rounds(rounds, 3) == [("a", 4.0), ("b", 1.0)]
    assert medians_of_rounds(rounds[:-1], 3) == [] == medians_of_rounds([], 3)


def _hold(path: str, pipe: Any) -> None:
    with Turn(path, 100):
        pipe.send("held")
        time.sleep(60)


def test_a_turn_is_one_process_s_until_it_dies(tmp_path: Path) -> None:
    path = str(tmp_path / "turn")
    context = multiprocessing.get_context("spawn")
    mine, theirs = context.Pipe()
    process = context.Process(target=_hold, args=(path, theirs), daemon=True)
    process.start()
    assert mine.recv() == "held"
    started = time.monotonic()
    process.kill()
    turn = Turn(path, 100)
    with turn, turn:
        assert time.monotonic() - started < 30
    turn.take()
    turn.give_back()
    assert turn.waited_s < 30 and turn.held_s > 0


def _hang(path: str) -> None:
    with Turn(path, 0.1):
        time.sleep(60)


def test_a_process_that_hangs_in_its_turn_is_ended(tmp_path: Path) -> None:
    process = multiprocessing.get_context("spawn").Process(target=_hang, args=(str(tmp_path / "turn"),))
    process.start()
    process.join(50)
    assert process.exitcode == EXIT_TIMEOUT


# Records and their report.


EXPECTED = {"fused_us": 18.0, "apart_us": 24.0}


def made_up(key: str, stock: float, ours: float, **changes: Any) -> Duel:
    region = {"space": "8x8", "strategy": "persistent", "kernels": ["mine"], "expected": EXPECTED}
    ways = {
        "stock": Way(us=stock, launches=3, errors=[1e-3], peak=1000, compile_s=2.0),
        "ours": Way(
            us=ours, launches=2, errors=[1e-3], peak=1000, regions=[region], kernels=[("mine", 17.0)]
        ),
    }
    duel = Duel(key, count=2, where=[["gpt", "autocast", "backward"]], kind="norm", limit_us=10.0, **ways)
    duel.locked = {"times": 0.5, "errors": 0.25}
    return dataclasses.replace(duel, **changes)


def figures(*records: list[Duel]) -> dict[str, str]:
    """The report's lines of two cells: what is told, and its value."""
    lines = [re.sub(" +", " ", line) for line in duel_report.report(list(records)).splitlines()]
    pairs = (line.split(" | ")[:2] for line in lines if line.startswith("| ") and line.count("|") == 4)
    return {name.removeprefix("| "): value for name, value in pairs}


def test_figures_of_made_up_results() -> None:
    fast, slow = made_up("fast", 40.0, 20.0), made_up("slow", 20.0, 22.0)
    slow.ours.kernels = [("mine_0", 18.0), ("other", 2.0)]
    near = made_up("near", 10.0, 10.9, kind="bias")  # slower by more than 3%, but not by 1 us
    near.ours.regions, near.ours.declined, near.ours.errors = [], {"cycle": 2}, [2e-3]
    near.ours.peak = 1006
    found = figures([fast], [slow], [near], [Duel("broken", "hung", "exit code None")])
    assert found["slower by more than 3% and 1 us"] == "1: slow"
    assert found["geometric mean, norm (2)"] == f"{math.sqrt(40 / 20 * 20 / 22):.3f}"
    assert found["geometric mean, bias (1)"] == "0.917"
    assert found["all occurrences, ms, stock -> ours"] == "0.14 -> 0.11"
    # 18 for 20 (all of it the region's), and 18 for 22 - 2.
    assert found["prediction: median, p95 of the error"] == "10.0%, 10.0% (2)"
    assert found["... to fuse (2)"] == "50.0%" and found["... not to (0 of 1 judged)"] == "-"
    # 24 for 40; of `slow`, a kernel is not the region's.
    assert found["... of Inductor's kernels"] == "40.0%, 40.0% (1)"
    assert found["less exact than stock"] == found["peak memory above stock's by 0.5%"] == "1: near"
    assert found["without a result"] == "1: broken"


def test_what_is_left_to_inductor_is_judged_by_a_duel_with_all_fused() -> None:
    def left(key: str) -> Duel:
        duel = made_up(key, 40.0, 40.0)
        duel.ours.regions, duel.ours.declined = [], {"slower": 1}
        return duel

    wrong, right = made_up("wrong", 40.0, 30.0, forced=True), made_up("right", 40.0, 39.5, forced=True)
    found = figures([wrong, left("wrong")], [left("right"), right], [left("unknown")])
    assert found["... not to (2 of 3 judged)"] == "50.0%"
    assert found["decisions that were right (2)"] == "50.0%"


def test_what_is_tuned_has_figures_of_its_own() -> None:
    """By a stricter bar, and it takes the place of no result without tuning."""
    plain, slow = made_up("slow", 20.0, 22.0), made_up("slow", 20.0, 20.3, tuned=True)
    fast = made_up("fast", 40.0, 20.0, tuned=True)
    found = figures([plain, slow], [made_up("fast", 40.0, 25.0), fast])
    assert found["tuned (2): slower by more than 1%"] == "1: slow"
    assert found["... geometric mean"] == f"{math.sqrt(2 * 20 / 20.3):.3f}"
    assert found["slower by more than 3% and 1 us"] == "1: slow"
    assert compilers.as_shipped(True, None, True)["mixorder_autotune"]
    assert "mixorder_autotune" not in compilers.as_shipped(False, None, True) | compilers.as_shipped(True)


def test_small_errors_are_as_good_as_none() -> None:
    duel = made_up("a", 1, 1)
    for mine, stock, less in (
        (1.2e-3, 1e-3, []),
        (1.3e-3, 1e-3, [0]),
        (9e-7, 1e-8, []),
        (math.inf, 1e-3, [0]),
    ):
        duel.ours.errors, duel.stock.errors = [mine], [stock]
        assert duel.less_exact == less


def test_results_are_read_back_and_a_broken_line_is_left_out(tmp_path: Path) -> None:
    one = made_up("a", 40.0, 20.0)
    plain = json.loads(json.dumps(dataclasses.asdict(one)))
    assert parse(plain | {"from": "another version"}).ours.regions == one.ours.regions
    path = tmp_path / "duels.jsonl"
    path.write_text(json.dumps(plain) + "\n" + json.dumps(plain | {"key": "b"})[:-20])
    again = tmp_path / "again.jsonl"
    again.write_text(json.dumps(dataclasses.asdict(made_up("a", 44.0, 20.0))) + "\n")
    ((first, second),) = load([path, again])
    assert (first.ratio, second.ratio) == (2.0, 2.2)


def entry(key: str, dtype: str, target: str = "aten.mul.Tensor") -> Entry:
    """dx and dw of a norm without its statistics; the third node is `target`."""
    wide, narrow = {"torch": "float32"}, {"torch": dtype}
    nodes = [
        ["prims.convert_element_type.default", [{"node": 0}, wide], {"kwargs": {}}],
        ["prims.convert_element_type.default", [{"node": 1}, wide], {"kwargs": {}}],
        [target, [{"node": 2}, {"node": 3}], {"kwargs": {}}],
        ["aten.mean.dim", [{"node": 4}, [1], True], {"kwargs": {}}],
        ["aten.sum.dim_IntList", [{"node": 4}, [0]], {"kwargs": {}}],
        ["aten.mul.Tensor", [{"node": 2}, {"node": 5}], {"kwargs": {}}],
        ["aten.sub.Tensor", [{"node": 3}, {"node": 7}], {"kwargs": {}}],
        ["prims.convert_element_type.default", [{"node": 8}, narrow], {"kwargs": {}}],
    ]
    inputs = [Input(dtype, [33, 20], [20, 1], [[33, 20], [20, 1]])] * 2
    places = [Place("gpt", "autocast" if dtype == "bfloat16" else "fp32", "backward", 2)]
    return Entry(key, inputs, nodes, [9, 6], [5], [6], "fused", "persistent", places)


def test_duels_from_end_to_end(tmp_path: Path) -> None:
    """In the interpreter, by the host's clock. What cannot be compiled is a line, and the others go on."""
    broken = entry("c", "bfloat16", "aten.mm.default")
    save(tmp_path / "corpus.jsonl.xz", [entry("a", "bfloat16"), entry("b", "float32"), broken])
    command = [sys.executable, str(TOOLS / "duel.py"), str(tmp_path / "corpus.jsonl.xz"), "--device", "cpu"]
    command += ["--workers", "1", "--out", str(tmp_path), "--seconds", "250"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1, done.stderr + done.stdout
    first, second, third = (records[-1] for records in load([tmp_path / "duels.jsonl"]))
    assert (first.key, first.mixed, second.key, second.mixed) == ("a", True, "b", False)
    for duel in (first, second):
        assert duel.timed and duel.kind == "norm" and duel.reference == "float64"
        assert [region["inner_ops"] for region in duel.ours.regions] == [["mean"]] and not duel.stock.regions
        assert len(duel.ours.errors) == len(duel.stock.errors) == 2 and not duel.less_exact
        assert {"first_stock", "first_ours", "times", "errors"} <= duel.locked.keys()
    assert 1e-4 < first.ours.errors[0] < 1e-2 and second.ours.errors[0] < 1e-6
    assert first.num_bytes == 3 * 33 * 20 * 2 + 20 * 4
    assert (third.key, third.status) == ("c", "failed") and "mm" in third.message
    text = (tmp_path / "duels.md").read_text()
    assert text in done.stdout and "33x20 persistent" in text
    assert "- c (gpt/autocast/backward): failed" in text
