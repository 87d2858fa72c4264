"""Random programs of tools/_programs.py, drawn and made smaller by hypothesis; that a bug would be found."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from mixorder import pipeline

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

from _differential import check, run  # noqa: E402
from _programs import Program, Step, make  # noqa: E402


class Drawn:
    """Choices of hypothesis, which makes them smaller where a test fails."""

    def __init__(self, draw: Any) -> None:
        self.draw = draw

    def integer(self, low: int, high: int) -> int:
        return self.draw(st.integers(low, high))

    def pick(self, choices: Sequence[Any]) -> Any:
        return self.draw(st.sampled_from(choices))


@settings(
    max_examples=14,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(st.data())
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's, of planted infinities
def test_random_programs(data: Any) -> None:
    program = make(Drawn(data.draw), small=True)
    note(program.source())
    check(program, "interpreter")


NORM = Program(
    shape=(5, 12),
    inner=(1,),
    outer=(0,),
    steps=(
        Step("v0", "row_sum", ("x", "y")),
        Step("v1", "sub_mul_row", ("y", "x", "v0")),
        Step("v2", "col_sum", ("x", "y")),
    ),
    outputs=(("v1", "plain"), ("v2", "plain")),
)


# The variance of symbolic rows divides by a number that is no tensor.
VARIANCE = Program(
    shape=(9, 5),
    inner=(1,),
    outer=(0,),
    steps=(
        Step("v0", "mul_row", ("x", "r")),
        Step("v1", "col_var", ("v0",), 2),
        Step("v2", "row_sum", ("x", "y")),
        Step("v3", "sub_mul_row", ("y", "x", "v2")),
    ),
    outputs=(("v1", "plain"), ("v3", "plain")),
    backward=True,
    dynamic=True,
)


def test_programs_in_which_a_bug_was_found() -> None:
    check(VARIANCE, "interpreter")


@pytest.mark.parametrize(
    ("strategy", "found"), [("", "held"), ("shared", "shared by 2"), ("twice", "read twice")]
)
def test_the_program_is_fused_in_the_way_that_it_asks_for(strategy: str, found: str) -> None:
    wide = NORM if not strategy else dataclasses.replace(NORM, shape=(5, 200), strategy=strategy)
    outcome = run(wide, "interpreter")
    assert (outcome.status, outcome.strategies) == ("ok", (found,)), outcome


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"acc = tl.full([XBLOCK, R0_BLOCK], 0.0": "acc = tl.full([XBLOCK, R0_BLOCK], 1.0"}, "values"),
        ({", ymask)": ", ymask & (y > 0))"}, "class"),  # the first column is not written
        ({"tl.cdiv(5,": "tl.cdiv(4,"}, "class"),  # the last row is left out
        ({"other=0": "other=1", "tl.where(ymask, ": "tl.where(ymask | True, "}, "values"),  # lanes beyond
        ({"tl.store(": "tl.stores("}, "crash"),
    ],
)
def test_a_bug_is_found(changes: dict[str, str], kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    generate = pipeline.generate

    def broken(*args: Any) -> Any:
        kernels = generate(*args)
        for old, new in changes.items():
            assert any(old in k.text for k in kernels)
            kernels = tuple(dataclasses.replace(k, text=k.text.replace(old, new)) for k in kernels)
        return kernels

    monkeypatch.setattr(pipeline, "generate", broken)
    outcome = run(NORM, "interpreter")
    assert (outcome.status, outcome.kind) == ("failed", kind), outcome
