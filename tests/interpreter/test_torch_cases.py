"""PyTorch's own samples of some ops and modules, beside row and column sums; that a bug would be found."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from support.torch_cases import Case, cases
from support.torch_trial import Ended, run_case

from mixorder.strategies import strategy

PARTS, OF_A_KIND = 2, 5


def chosen() -> list[Case]:
    """Of integers forward, of floats forward and of gradients: as many ops of each, no op twice in one."""
    kinds: dict[str, dict[str, Case]] = {}
    for case in cases("interpreter"):
        kind = "backward" if case.backward else str(getattr(torch, case.dtype).is_floating_point)
        of_kind = kinds.setdefault(kind, {})
        if len(of_kind) < OF_A_KIND:
            of_kind.setdefault(case.name, case)
    return [case for of_kind in kinds.values() for case in of_kind.values()]


@pytest.mark.filterwarnings("ignore")  # NumPy's, of overflow and invalid values
@pytest.mark.parametrize("part", range(PARTS))
def test_samples_give_what_eager_gives(part: int) -> None:
    ended = {str(case): run_case(case, "interpreter", samples=1) for case in chosen()[part::PARTS]}
    bad = [
        f"{case}, {unit.label}: {unit.kind}: {unit.message}\n{unit.source}"
        for case, one in ended.items()
        for unit in one.units
        if unit.status == "failed"
    ]
    assert not bad, "\n".join(bad)
    held = [case for case, one in ended.items() if any(unit.held for unit in one.units)]
    assert len(held) * 3 >= len(ended), held


def ended_with(monkeypatch: pytest.MonkeyPatch, case: Case, changes: dict[str, str]) -> Ended:
    """What becomes of a case where the kernels' text is changed."""
    generate = strategy.generate

    def broken(*args: Any) -> Any:
        kernels = generate(*args)
        for old, new in changes.items():
            kernels = tuple(dataclasses.replace(k, text=k.text.replace(old, new)) for k in kernels)
        return kernels

    monkeypatch.setattr(strategy, "generate", broken)
    return run_case(case, "interpreter", samples=1)


@pytest.mark.parametrize(
    ("case", "changes", "kinds"),
    [
        (Case("reductions", "sum", "float32", True), {"tl.sum(": "2.0 * tl.sum("}, {"values"}),
        (Case("reductions", "sum", "float32", False), {"tl.store(": "tl.stores("}, {"crash"}),
        (Case("reductions", "amax", "float32", False), {", xmask": ", xmask & (x > 0)"}, {"class", "values"}),
    ],
)
def test_a_bug_is_found(
    case: Case, changes: dict[str, str], kinds: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert all(unit.status == "ok" for unit in run_case(case, "interpreter", samples=1).units)
    ended = ended_with(monkeypatch, case, changes)
    found = {unit.kind for unit in ended.units if unit.status == "failed"}
    assert found and found <= kinds, ended
