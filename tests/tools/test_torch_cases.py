"""The parts of tools/torch_cases.py: its cases, their samples, the comparison, what is printed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch_cases
from support import torch_trial
from support.torch_cases import GROUPS, Case, cases, infos, units
from support.torch_trial import Trial


def case_of(name: str, dtype: str = "float32", backward: bool = False) -> Case:
    (case,) = (c for c in cases("interpreter") if (c.name, c.dtype, c.backward) == (name, dtype, backward))
    return case


def test_every_reduction_norm_loss_and_their_modules_are_taken() -> None:
    from torch.testing._internal.common_methods_invocations import op_db
    from torch.testing._internal.opinfo.core import ReductionOpInfo

    found = infos()
    assert {op.name for op in op_db if isinstance(op, ReductionOpInfo)} <= found.keys()
    losses = {op.name for op in op_db if op.name.endswith("_loss")}
    norms = {op.name for op in op_db if op.name.endswith(("_norm", "softmax", "norm.fro"))}
    assert losses | norms <= {info.name for _, info in found.values()}
    assert {"nn.LayerNorm", "nn.CrossEntropyLoss", "nn.Softmax2d", "var_mean.unbiased"} <= found.keys()
    assert {"cumsum", "logsumexp", "aminmax", "max.reduction_with_dim", "trace"} <= found.keys()
    assert not {"normal", "max.binary", "nn.functional.dropout", "nn.Linear"} & found.keys()


def test_cases_are_in_a_fixed_order_in_which_neighbours_differ() -> None:
    listed = cases("interpreter")
    assert listed == cases("interpreter") and len(set(map(str, listed))) == len(listed)
    assert {c.dtype for c in listed if c.name == "any"} >= {"bool", "uint8", "int64", "float16", "float64"}
    assert {c.group for c in listed} == {*GROUPS}
    assert not any(c.backward and not getattr(torch, c.dtype).is_floating_point for c in listed)
    assert len({c.name for c in listed[:100]}) > 50


@pytest.mark.parametrize(
    "case",
    [
        Case("reductions", "sum", "int32", False),
        Case("losses", "nn.functional.nll_loss", "float32", True),
        Case("norms", "nn.functional.layer_norm", "bfloat16", True),
        Case("modules", "nn.BatchNorm1d", "float32", False),
    ],
    ids=str,
)
def test_functions_of_samples_run_alone_and_together(case: Case) -> None:
    todo = units(case, "interpreter", samples=2)
    assert len({unit.label for unit in todo}) == len(todo) >= 2
    together = Trial(case, todo, "interpreter")
    for wide in (False, True):
        whole = together.eager(wide)
        for unit, results in zip(todo, whole, strict=True):
            (alone,) = Trial(case, [unit], "interpreter").eager(wide)
            assert all(map(torch.equal, results, alone))
            assert not wide or all(r.dtype == torch.float64 for r in results if r.is_floating_point())


@pytest.mark.parametrize("backward", [False, True])
def test_the_reference_computes_the_same_with_more_places(backward: bool) -> None:
    for name in ("logsumexp", "nn.functional.smooth_l1_loss", "nn.functional.layer_norm", "nn.GroupNorm"):
        case = case_of(name, "float32", backward)
        trial = Trial(case, units(case, "interpreter", samples=1), "interpreter")
        results = [t for one in trial.eager() for t in one]
        exact = [t for one in trial.eager(wide=True) for t in one]
        for result, truth in zip(results, exact, strict=True):
            assert not result.is_floating_point() or truth.dtype == torch.float64
            assert torch.allclose(result.double(), truth.double(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("name", "smooth"), [("softmax", True), ("amax", False), ("linalg.norm", False)])
def test_what_jumps_is_never_behind_a_rounding(name: str, smooth: bool) -> None:
    modes = {unit.mode for unit in units(case_of(name, "float32", True), "interpreter", samples=1)}
    assert ("through" in modes) == smooth and modes & {"layer", "rms"}


def wrong(mine: Any, eager: Any, exact: Any = None, stock: Any = None) -> str | None:
    others = [t for t in (stock, eager) if t is not None]
    exact = eager.double() if exact is None else exact
    difference = torch_trial._wrong([mine], [[t] for t in others], [exact])
    return difference.kind if difference else None


def test_comparison() -> None:
    ones = torch.ones(4, 6)
    assert wrong(ones, ones) is None
    assert wrong(ones, ones.half()) == "form" and wrong(ones, ones[:2]) == "form"
    assert wrong(ones * 1.1, ones) == "values" and wrong(ones * 1.1, ones, stock=ones * 1.05) is None
    assert wrong(ones * float("nan"), ones) == "class"
    half = ones.half() * (1 + 2**-9)
    assert wrong(half, ones.half(), ones.double()) is None  # places of the result's dtype
    assert wrong(ones * (1 + 2**-9), ones) == "values"
    far = ones * 2
    assert (
        wrong(ones * 9, far, ones.double()) is None
        and wrong(ones * 9, ones * 1.01, ones.double()) == "values"
    )
    counts = torch.arange(5)
    assert wrong(counts + 1, counts) == "integers" and wrong(counts, counts.clone()) is None
    assert wrong(counts + 1, counts, stock=counts + 1) is None  # a tie that stock breaks so as well
    assert wrong(counts + 1, counts, stock=counts + 2) == "integers"


def test_a_truth_value_is_a_byte_of_zero_or_one() -> None:
    truth = torch.tensor([True, False])
    mine = torch.tensor([255, 0], dtype=torch.uint8).view(torch.bool)
    assert wrong(mine, truth) == "bytes" and wrong(truth.clone(), truth) is None


@pytest.mark.parametrize(
    ("raised", "stock_raises", "status"),
    [
        ("mixorder failed in stage 'lower' on region0: KeyError", True, "failed"),
        ("CompilationError: at 3:4", True, "torch"),
        ("CompilationError: at 3:4", False, "failed"),
    ],
)
def test_whose_crash_it_is(
    raised: str, stock_raises: bool, status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def compiled(self: Any, options: dict[str, Any]) -> Any:
        if options["mixorder"] or stock_raises:
            raise RuntimeError(raised if options["mixorder"] else "stock")
        return self.eager()

    monkeypatch.setattr(Trial, "compiled", compiled)
    ended = torch_trial.run_case(case_of("sum"), "interpreter", samples=1)
    assert {(unit.status, unit.kind) for unit in ended.units} == {(status, "crash")}


def test_a_failure_is_told_of_the_sample_that_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    case = case_of("sum", "int64")
    last = units(case, "interpreter", 1)[-1].label

    def compiled(self: Any, options: dict[str, Any]) -> Any:
        results = self.eager()
        for unit, one in zip(self.units, results, strict=True):
            if options["mixorder"] and unit.label == last:
                one[0] = one[0] + 1
        return results

    monkeypatch.setattr(Trial, "compiled", compiled)
    ended = torch_trial.run_case(case, "interpreter", samples=1)
    assert [unit.label for unit in ended.units if unit.status == "failed"] == [last]


def test_a_run_without_cases_is_no_success(tmp_path: Path) -> None:
    asked = f"--device interpreter --workers 1 --only ^no-such-case --out {tmp_path}"
    assert torch_cases.main(asked.split()) == 1
    assert "0 of 0 cases" in (tmp_path / "summary.txt").read_text()
