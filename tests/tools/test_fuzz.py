"""The fuzzer's own parts: programs, the comparison, the processes, what is printed."""

from __future__ import annotations

import dataclasses
import math
import time
import warnings
from pathlib import Path
from typing import Any

import fuzz
import pytest
import torch
import torch._inductor.ir as ir
from lab.pool import Broken, Pool
from support import differential
from support.comparison import Difference, compare
from support.compilers import by_node
from support.discrete import FP8, INTS
from support.inputs import laid_out, poison
from support.programs import LAYOUTS, OPS, Program, Step, make

PLAIN = Program((4, 6), (1,), (0,), (Step("v0", "mul", ("x", "y")),), (("v0", "plain"),))


@pytest.mark.parametrize("small", [True, False])
def test_programs_come_from_their_seed_and_have_both_reductions(small: bool) -> None:
    programs = [make(seed, small=small) for seed in range(400)]
    assert programs == [make(seed, small=small) for seed in range(400)]
    for program in programs:
        results = {OPS[s.op].result for s in program.steps}
        assert {"row", "col"} <= results
        compile(program.source(), "program", "exec")
    assert {p.dtype for p in programs} == {"float16", "bfloat16", "float32", "float64"}
    assert {layout for p in programs for layout in p.layouts} == {*LAYOUTS}
    assert any(p.planted for p in programs) and any(p.dynamic for p in programs)


def test_every_operator_is_drawn() -> None:
    programs = [make(seed, small=True) for seed in range(2500)]
    assert {step.op for p in programs for step in p.steps} == OPS.keys()
    assert {p.int_dtype for p in programs} == {*INTS} and {p.fp8_dtype for p in programs} == {*FP8}
    assert any(0 in p.shape for p in programs) and any(p.oblivious and 0 in p.sizes for p in programs)


def results(**changes: float) -> list[torch.Tensor]:
    result = torch.linspace(-1, 1, 600, dtype=torch.float64).view(20, 30).clone()
    for place, value in changes.items():
        result.view(-1)[int(place[1:])] = value
    return [result]


@pytest.mark.parametrize(
    ("ours", "others", "exact", "kind"),
    [
        ({}, {}, {}, None),
        ({"_7": float("nan")}, {}, {}, "class"),
        ({"_7": float("inf")}, {"_7": -float("inf")}, {}, None),  # nobody agrees with float64
        ({"_7": float("nan")}, {"_7": float("nan")}, {"_7": float("nan")}, None),
        ({"_7": 0.5}, {"_7": float("nan")}, {"_7": float("nan")}, "class"),
        ({"_7": -0.97}, {}, {}, "values"),
        ({"_7": -0.97}, {"_8": -0.97}, {}, None),
        ({"_7": -0.97, "_9": -0.96, "_0": -1.01, "_50": -0.84}, {"_8": -0.97}, {}, "values"),  # by the norm
    ],
)
def test_comparison(ours: Any, others: Any, exact: Any, kind: str | None) -> None:
    cases = [[t.to(torch.float32) for t in results(**changes)] for changes in (ours, others)]
    found = None
    try:
        compare(PLAIN, cases[0], [cases[1], cases[1]], results(**exact))
    except Difference as difference:
        found = difference.kind
    assert found == kind


def test_comparison_of_forms() -> None:
    exact = results()
    mine = [exact[0].float()]
    for other in (exact[0].to(torch.bfloat16), exact[0].float().t()):
        with pytest.raises(Difference) as caught:
            compare(PLAIN, mine, [[other], [other]], [other.double()])
        assert caught.value.kind == "form"
    padded = [laid_out(mine[0], "padded")]
    compare(PLAIN, padded, [mine, mine], exact)
    with pytest.raises(Difference, match="strides"):
        compare(PLAIN, padded, [mine, mine], exact, strides=True)


def test_a_form_may_be_that_of_any_of_the_others() -> None:
    """Inductor gives bools for `any` of bytes, and torch 2.11 loses dims of size 1 that a sum keeps."""
    eager = torch.tensor([[1, 0, 1]], dtype=torch.uint8)
    for stock in (eager.bool(), eager[0]):
        for mine in (eager, stock):
            compare(PLAIN, [mine], [[stock], [eager]], [eager], letters=["b"])
            with pytest.raises(Difference, match="3 in all"):
                compare(PLAIN, [1 - mine.byte()], [[stock], [eager]], [eager], letters=["b"])
    with pytest.raises(Difference, match="float32"):
        compare(PLAIN, [eager.float()], [[eager.bool()], [eager]], [eager], letters=["b"])
    with pytest.raises(Difference, match=r"\(1,\)"):
        compare(PLAIN, [eager[0, :1]], [[eager[0, :1]], [eager]], [eager], letters=["b"])


@pytest.mark.parametrize("dtype", [torch.float8_e5m2, torch.bfloat16, torch.float32, torch.float64])
def test_elements_are_poisoned_and_what_lies_between_is_large(dtype: torch.dtype) -> None:
    place = poison(torch.empty_strided((3, 2, 5), (1, 24, 4), dtype=dtype))
    everything = place.new_empty(0).set_(place.untyped_storage()).double()
    assert place.double().isnan().all()
    between = everything[~everything.isnan()]
    assert len(between) == len(everything) - 30 > 0 and (between > 1e4).all() and between.isfinite().all()


def difference(program: Program, mine: torch.Tensor, truth: torch.Tensor, letter: str) -> str | None:
    other = truth.to(mine.dtype)
    try:
        compare(program, [mine], [[other], [other]], [truth], letters=[letter])
    except Difference as found:
        return found.kind
    return None


def test_what_is_not_rounded_is_compared_exactly() -> None:
    large = dataclasses.replace(PLAIN, dtype="bfloat16")
    for dtype, letter in ((torch.int32, "i"), (torch.float32, "z"), (torch.float8_e5m2, "q")):
        truth = torch.arange(1000, 1004).to(dtype)
        assert difference(large, truth.clone(), truth, letter) is None
        assert difference(large, truth.double().mul(1.25).to(dtype), truth, letter) == "values"
    assert difference(large, torch.tensor([7]), torch.tensor([8]), "i") == "values"
    nan = torch.tensor([math.nan, 1.0])
    assert difference(large, nan.clone(), nan, "z") is None
    assert difference(large, torch.tensor([math.nan, 1.0]), torch.tensor([2.0, 1.0]), "z") == "values"


def test_a_truth_value_is_0_or_1_in_memory() -> None:
    odd = torch.tensor([1, 2], dtype=torch.uint8).view(torch.bool)
    assert difference(PLAIN, odd, torch.tensor([True, True]), "b") == "bytes"
    assert difference(PLAIN, torch.tensor([True, False]), torch.tensor([True, False]), "b") is None
    assert difference(PLAIN, torch.tensor([True, False]), torch.tensor([True, True]), "b") == "values"
    right = torch.tensor([True, True])
    compare(PLAIN, [odd], [[odd], [right]], [right], letters=["b"])  # stock's are odd, too


def test_a_program_whose_exact_inputs_are_written_is_not_sound() -> None:
    steps = (Step("v0", "write_full", ("x", "y")), Step("v1", "above", ("x",)))
    program = dataclasses.replace(PLAIN, steps=steps, outputs=(("v1", "plain"),))
    assert not program.sound and dataclasses.replace(program, steps=steps[::-1]).sound
    assert all(make(seed, small=True).sound for seed in range(400))


def test_the_first_failure_of_each_kind_becomes_a_test(tmp_path: Path) -> None:
    args = fuzz.parsed(["--out", str(tmp_path), "--device", "interpreter"])
    outcomes = [("ok", None), ("failed", "values"), ("failed", "values"), ("failed", "bytes")]
    found = [
        {"seed": seed, "status": status, "kind": kind, "message": 'said """so"""'}
        for seed, (status, kind) in enumerate(outcomes)
    ]
    fuzz.write_tests(args, found)
    texts = {path.name: path.read_text() for path in tmp_path.glob("*.py")}
    assert texts.keys() == {"test_fuzz_1.py", "test_fuzz_3.py"}
    for seed in (1, 3):
        text = texts[f"test_fuzz_{seed}.py"]
        compile(text, "test", "exec")
        assert f"PROGRAM = {make(seed, small=True)!r}" in text


TASKS = """
import os, time

class Result:
    def __init__(self, value, lost=False):
        self.value, self.lost = value, lost

def work(task):
    if task == "hang":
        time.sleep(60)
    if task == "crash":
        os._exit(3)
    if task == "lose":
        return Result(os.getpid(), lost=True)
    return Result((task, os.environ["FOR_THE_TEST"], os.getpid()))
"""


def test_processes_that_hang_or_crash_are_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "fuzzed_tasks.py").write_text(TASKS)
    monkeypatch.syspath_prepend(str(tmp_path))
    pool = Pool(2, "fuzzed_tasks", "work", {"FOR_THE_TEST": "set"})
    try:
        tasks = ["crash", "hang", "lose", *range(6)]
        found = dict(pool.run(tasks, limit=1.0, first=3.0))
        assert found.keys() == set(tasks)
        assert found["crash"] == Broken("crashed", 3) and found["hang"] == Broken("hung")
        assert [found[i].value[:2] for i in range(6)] == [(i, "set") for i in range(6)]
        assert found["lose"].value not in {found[i].value[2] for i in range(3, 6)}
        assert dict(pool.run(range(3), limit=1.0, until=0.0)) == {}
        ends = time.monotonic() + 1
        assert dict(pool.run(["hang"], limit=100.0, ends=ends)) == {"hang": Broken("hung")}
        assert time.monotonic() < ends + 30
    finally:
        pool.close()


@pytest.mark.parametrize("ours", ["its graph's", "unfused", "its own"])
def test_a_fault_of_inductor_that_stock_hides_is_not_held_against_mixorder(
    monkeypatch: pytest.MonkeyPatch, ours: str
) -> None:
    """In torch's graph of this program, 0.0 and -0.0 are one constant."""
    steps, outputs = (*PLAIN.steps, Step("v1", "sign_of_zero", ("x",))), (*PLAIN.outputs, ("v1", "plain"))
    program = dataclasses.replace(PLAIN, steps=steps, outputs=outputs, backward=True)
    trial = differential._Trial(program, "cpu")
    compiled = differential._Trial.compiled

    def chosen(self: Any, options: dict[str, Any], times: int = 1) -> list[Any]:
        if "backend" in options:
            return compiled(self, options, times)
        right = trial.eager()
        wrong = [[*right[0][:-1], ~right[0][-1]]]
        if options == differential.UNFUSED and ours == "unfused":
            return wrong
        if options["mixorder"]:
            return compiled(self, {"backend": by_node}) if ours == "its graph's" else wrong
        return right

    monkeypatch.setattr(differential._Trial, "compiled", chosen)
    if ours == "its graph's":
        (*_, mine), (*_, eager) = compiled(trial, {"backend": by_node})[0], trial.eager()[0]
        if torch.equal(mine, eager):
            pytest.skip("this torch's graph has both zeros")  # from 2.15 on
    outcome = differential._compared(trial, ask_stock=True)
    assert (outcome.status, outcome.kind) == ("failed" if ours == "its own" else "torch", "values")


@pytest.mark.parametrize("whole", ["the same", "other bits", "crash"])
def test_a_split_scan_is_not_held_against_mixorder(monkeypatch: pytest.MonkeyPatch, whole: str) -> None:
    """Stock cannot be asked: it does not compile. What is indeterminate without any split is ours."""
    split = ir.Scan.num_splits

    def compiled(trial: Any, options: dict[str, Any], times: int = 1) -> list[Any]:
        if not options["mixorder"]:
            raise TypeError("stock")
        if ir.Scan.num_splits == split or whole == "other bits":
            raise Difference("indeterminate", "a second run gives other bits in results [0]")
        if whole == "crash":
            raise TypeError("ours")
        assert times == differential.RUNS and ir.Scan.num_splits(scan_numel=8)[1] == 1
        return []

    monkeypatch.setattr(differential._Trial, "compiled", compiled)
    trial = differential._Trial(PLAIN, "cuda")
    error = Difference("indeterminate", "a second run gives other bits in results [0]")
    outcome = differential._crash(trial, error, {"fused": 1})
    assert (outcome.status, outcome.kind) == ("torch" if whole == "the same" else "failed", "indeterminate")
    assert ir.Scan.num_splits == split


@pytest.mark.parametrize("way", ["given back", "not said", "wrong", "crash"])
def test_what_is_given_back_is_compiled_and_right(monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    """Where stock compiles and strict mixorder does not, the default has to: with a warning, and rightly."""
    trial = differential._Trial(PLAIN, "cpu")
    right = [example.run(trial.function) for example in trial.examples()]

    def compiled(self: Any, options: dict[str, Any], times: int = 1) -> list[Any]:
        if options["mixorder"] and way == "crash":
            raise TypeError("ours")
        if options["mixorder"] and way != "not said":
            warnings.warn(
                "mixorder fused a region of a graph; it is compiled without. TypeError", stacklevel=1
            )
        return [[r + 1 for r in results] for results in right] if way == "wrong" else right

    monkeypatch.setattr(differential._Trial, "compiled", compiled)
    outcome = differential._crash(trial, TypeError("strict"), {"fused": 1})
    expected = ("torch", "given-back") if way == "given back" else ("failed", "crash")
    assert (outcome.status, outcome.kind) == expected
