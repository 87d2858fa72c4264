"""Random programs of tests/support/programs.py; that a bug would be found. tools/fuzz.py writes a failing one
as a test: `python tools/fuzz.py --device interpreter --workers 1 --seed 3 --cases 1 --out fuzz`."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import pytest
from graphs import generating
from support import differential
from support.differential import check, run
from support.effects import sequence
from support.programs import OPS, Program, Step, make
from torch.fx import Graph

from mixorder import pipeline

CHUNK = 40  # operators of a program
WORDS = sorted(OPS)
random.Random(0).shuffle(WORDS)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's, of planted infinities
def test_random_programs(seed: int) -> None:
    check(make(seed, small=True), "interpreter")


@pytest.mark.parametrize("first", range(0, len(WORDS), CHUNK))
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_every_operator(first: int) -> None:
    """In programs that have many of them, in the first in which all fit."""
    words = WORDS[first : first + CHUNK]
    made = (make(seed, small=True, wanted=words) for seed in range(200))
    program = max(made, key=lambda p: len({s.op for s in p.steps} & {*words}))
    check(program, "interpreter", stock=False)


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


# Truth values are stored transposed, in a graph that is compiled for no rows.
NO_ROWS = Program(
    shape=(1, 7, 12),
    inner=(2,),
    outer=(0, 1),
    steps=(Step("v1", "row_bool_eq", ("ri", "ri"), 4), Step("v6", "col_sum_flat", ("x", "y"), 1)),
    outputs=(("v1", "twice"), ("v6", "transposed")),
    layouts=("contiguous", "offset", "contiguous", "expanded"),
    dynamic=True,
    sizes=(0, 2),
    oblivious=True,
)


# A transposed tensor is copied, of which nothing says whether it has a single row.
COPIED = Program(
    shape=(13, 12),
    inner=(1,),
    outer=(0,),
    steps=(
        Step("v0", "times_row_count", ("x", "ri"), 4),
        Step("v1", "col_sum", ("y", "y"), 3),
        Step("v2", "row_sum", ("y", "y"), 5),
        Step("v3", "sub_mul_row", ("v0", "v0", "v2"), 3),
    ),
    outputs=(("v3", "plain"), ("v1", "plain")),
    layouts=("contiguous", "transposed", "contiguous", "contiguous"),
    backward=True,
    dynamic=True,
    sizes=(16,),
    oblivious=True,
)


# A custom operator's result, less what it is computed from: nothing is left of values that are both rounded.
ROUNDED = Program(
    shape=(2, 3, 4, 5),
    inner=(2, 3),
    outer=(0, 2, 3),
    steps=(
        Step("v5", "mul_row", ("x", "r"), 1),
        Step("v7", "note", ("v5",), 4),
        Step("v8", "row_sum", ("x", "x"), 3),
        Step("v9", "col_sum_flat", ("v5", "v7"), 5),
    ),
    outputs=(("v8", "plain"), ("v9", "plain")),
    dtype="float16",
    weight_dtype="float16",
)


# Infinities are cast to float8: eager's casts of them are of the version, and none is as a kernel's.
SATURATED = dataclasses.replace(
    NORM,
    steps=(*NORM.steps, Step("v3", "fp8_e5m2", ("x",)), Step("v4", "through_fp8", ("y", "x"))),
    outputs=(*NORM.outputs, ("v3", "plain"), ("v4", "plain")),
    planted=(("x", 7, "inf"), ("y", 33, "-inf")),
)


# The product of an expanded tensor and a transposed one lies otherwise by eager operators than by fake ones.
EXPANDED = Program(
    shape=(1, 3, 3),
    inner=(2,),
    outer=(0,),
    steps=(
        Step("v0", "one_factor", ("y", "w")),
        Step("v1", "col_sum", ("y", "v0"), 5),
        Step("v2", "row_sum", ("y", "v0"), 2),
        Step("v3", "temperature", ("v0", "v1")),
    ),
    outputs=(("v3", "plain"), ("v1", "plain"), ("v2", "plain")),
    dtype="float16",
    weight_dtype="float16",
    layouts=("contiguous", "transposed", "contiguous", "contiguous"),
    backward=True,
)


# A sum of all elements goes to a tensor with fewer axes than the sums that it was added up from.
FEWER_AXES = Program(
    shape=(1, 3, 4, 2),
    inner=(2, 3),
    outer=(0, 2, 3),
    steps=(
        Step("v0", "col_sum", ("y", "x"), 4),
        Step("v1", "one_factor", ("y", "v0"), 5),
        Step("v2", "temperature", ("y", "v0"), 3),
        Step("v3", "row_sum", ("y", "v1"), 5),
    ),
    outputs=(("v0", "plain"), ("v2", "sliced"), ("v3", "plain"), ("v1", "flat")),
    dtype="float16",
    layouts=("contiguous", "channels-last", "contiguous", "offset"),
    backward=True,
)


# Of a single row, which programs share, no tensor has an index along both axes.
SHARED_ROW = Program(
    shape=(1, 40, 1),
    inner=(1,),
    outer=(0, 1),
    steps=(
        Step("v0", "one_factor", ("x", "w"), 3),
        Step("v1", "col_sum", ("x", "y"), 2),
        Step("v2", "temperature", ("v0", "v1"), 4),
        Step("v3", "row_sum", ("y", "v2"), 3),
    ),
    outputs=(("v2", "transposed"), ("v1", "plain"), ("v3", "sliced")),
    dtype="bfloat16",
    weight_dtype="bfloat16",
    layouts=("contiguous", "contiguous", "channels-last", "contiguous"),
    backward=True,
    strategy="cooperative",
    seed=1,
)


# A piece of a softmax with a sink, which a kernel reads as it lies when it is computed piecewise.
PIECE = Program(
    shape=(8, 2, 16),
    inner=(1, 2),
    outer=(0,),
    steps=(
        Step("v1", "position", ("x", "y"), 4),
        Step("v3", "normed_head", ("v1", "v1"), 3),
        Step("v4", "gated_half", ("v3", "v3"), 4),
        Step("v5", "sink", ("v1", "v4"), 2),
        Step("v6", "gate_of_all", ("v3", "v3"), 1),
        Step("v8", "row_sum", ("v6", "v3"), 3),
        Step("v10", "col_sum", ("v5", "v4"), 3),
        Step("v11", "normed_apart", ("v5", "v10"), 3),
        Step("v14", "sink", ("v6", "v11"), 1),
    ),
    outputs=(("v14", "flat"), ("v10", "twice"), ("v8", "plain")),
    layouts=("contiguous", "padded", "padded", "channels-last"),
    backward=True,
    seed=761025,
)


# Moments in double precision, whose parts have counts that are divided.
MOMENTS = Program(
    shape=(2, 1205, 5),
    inner=(1,),
    outer=(0, 1),
    steps=(
        Step("v0", "two_zeros", ("y", "y"), 1),
        Step("v3", "mul_col", ("y", "w"), 3),
        Step("v4", "through_fp8", ("x", "v3"), 1),
        Step("v6", "col_max_of_product", ("x", "y"), 1),
        Step("v9", "padded_both", ("v0", "v4"), 3),
        Step("v10", "row_sum", ("v4", "v9"), 2),
        Step("v11", "elu_between", ("x", "v6"), 4),
        Step("v13", "col_sum", ("v3", "v11"), 3),
    ),
    outputs=(("v11", "transposed"), ("v10", "transposed"), ("v13", "sliced")),
    dtype="float64",
    weight_dtype="float64",
    fp8_dtype="float8_e5m2",
)


# A sum's result has an order that only its users tell.
GATED = Program(
    shape=(2, 5, 16529),
    inner=(0, 2),
    outer=(0, 2),
    steps=(
        Step("v0", "col_sum", ("y", "y"), 1),
        Step("v1", "gated_half", ("y", "y"), 4),
        Step("v2", "row_sum", ("v1", "y"), 1),
        Step("v3", "mul_col", ("y", "v0"), 5),
        Step("v4", "gate_along", ("x", "v3"), 5),
    ),
    outputs=(("v0", "flat"), ("v4", "plain"), ("v2", "transposed"), ("v3", "plain")),
    dtype="float64",
    weight_dtype="float64",
    backward=True,
)


# A piece of a row of 12, of a symbolic batch whose hint is 1.
SINK = Program(
    shape=(1, 2, 11),
    inner=(2,),
    outer=(0,),
    steps=(
        Step("v0", "col_sum", ("y", "y"), 2),
        Step("v1", "gate_of_all", ("x", "y"), 2),
        Step("v2", "sink", ("y", "y"), 2),
        Step("v3", "position", ("v1", "v2"), 5),
        Step("v4", "row_sum", ("v3", "v3"), 5),
        Step("v5", "row_sum", ("v2", "v2"), 5),
        Step("v6", "sub_mul_row", ("v2", "v2", "v4"), 3),
    ),
    outputs=(("v0", "twice"), ("v6", "plain"), ("v5", "flat"), ("v4", "transposed")),
    backward=True,
    dynamic=True,
    sizes=(4, 1),
    oblivious=True,
)


# A tile of one row and one column is rounded.
ONE_COLUMN = Program(
    shape=(2, 1, 1),
    inner=(2,),
    outer=(0, 1),
    steps=(
        Step("v0", "row_sum", ("x", "y"), 2),
        Step("v1", "turned_row", ("y", "v0"), 2),
        Step("v2", "col_sum", ("y", "v1"), 1),
    ),
    outputs=(("v0", "twice"), ("v1", "sliced"), ("v2", "sliced")),
    dtype="bfloat16",
    backward=True,
    dynamic=True,
    split_size=64,
    sizes=(1, 0),
)


BUGS = {
    "variance": VARIANCE,
    "no rows": NO_ROWS,
    "copied": COPIED,
    "rounded": ROUNDED,
    "saturated": SATURATED,
    "expanded": EXPANDED,
    "fewer axes": FEWER_AXES,
    "shared row": SHARED_ROW,
    "moments": MOMENTS,
    "piece": PIECE,
    "gated": GATED,
    "sink": SINK,
    "one column": ONE_COLUMN,
}


@pytest.mark.parametrize("program", BUGS.values(), ids=BUGS)
def test_programs_in_which_a_bug_was_found(program: Program) -> None:
    check(program, "interpreter")


# In one row the mean square rounds to 1 or, as eager sums it, to the number behind: `y - y * v2` is 0 or not.
JUMP = Program(
    shape=(3, 2, 12),
    inner=(2,),
    outer=(1,),
    steps=(
        Step("v2", "row_sum", ("y", "y"), 3),
        Step("v4", "sub_mul_row", ("y", "y", "v2"), 3),
        Step("v7", "col_sum_flat", ("v4", "v4"), 5),
        Step("v9", "signed_zero", ("x", "v4"), 2),
    ),
    outputs=(("v7", "plain"), ("v9", "plain")),
    dtype="bfloat16",
    weight_dtype="bfloat16",
    backward=True,
    split_size=1,
    seed=501772,
)


def test_what_jumps_beside_the_inputs_in_eager_as_well_is_no_failure() -> None:
    assert run(JUMP, "interpreter").status == "torch"


@pytest.mark.parametrize(
    ("strategy", "found"),
    [
        ("", "persistent"),
        ("cooperative", "cooperative, 2 programs to 2 rows"),
        ("short sums", "short sums"),
    ],
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
    def broken(generate: Any, *args: Any) -> Any:
        kernels = generate(*args)
        for old, new in changes.items():
            assert any(old in k.text for k in kernels)
            kernels = tuple(dataclasses.replace(k, text=k.text.replace(old, new)) for k in kernels)
        return kernels

    monkeypatch.setattr(differential, "STRATEGIES", generating(broken))
    outcome = run(NORM, "interpreter")
    assert (outcome.status, outcome.kind) == ("failed", kind), outcome


# An effect before the region, one that reads what the region makes, and one that reads neither.
EFFECTS = dataclasses.replace(
    NORM,
    steps=(
        Step("v3", "all_reduce", ("y",)),
        Step("v0", "row_sum", ("x", "v3")),
        Step("v1", "sub_mul_row", ("y", "x", "v0")),
        Step("v2", "col_sum", ("x", "v3")),
        Step("v4", "note_col", ("v2",), 1),
        Step("v5", "noise_row", ("r",)),
        Step("v6", "note_row", ("v5",), 2),
        Step("v7", "bump", ("y", "x"), 3),
    ),
    outputs=(("v1", "plain"), ("v4", "plain"), ("v6", "plain")),
)


@pytest.mark.parametrize("backward", [False, True])
def test_effects_are_fused_around(backward: bool) -> None:
    steps = EFFECTS.steps[:-1] if backward else EFFECTS.steps
    outcome = run(dataclasses.replace(EFFECTS, steps=steps, backward=backward), "interpreter")
    assert outcome.status == "ok" and outcome.fused, outcome


def test_a_moved_effect_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    pass_ = pipeline.run

    def moving(graph: Graph, *args: Any, **kwargs: Any) -> Any:
        result = pass_(graph, *args, **kwargs)
        first, *_, last = (n for n in graph.nodes if n.name in sequence(graph))
        graph.output_node().prev.append(first) if not first.users else last.append(first)
        return result

    monkeypatch.setattr(pipeline, "run", moving)
    steps = (Step("v8", "noise_row", ("r",)), *NORM.steps, Step("v9", "noise_col", ("w",)))
    outputs = (*NORM.outputs, ("v8", "plain"), ("v9", "plain"))
    outcome = run(dataclasses.replace(NORM, steps=steps, outputs=outputs), "interpreter")
    assert (outcome.status, outcome.kind) == ("failed", "effects"), outcome


def test_an_added_guard_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    pass_ = pipeline.run

    def asking(graph: Graph, *args: Any, **kwargs: Any) -> Any:
        rows = next(node.meta["val"].shape[0] for node in graph.nodes if node.name == "sum_1")
        assert rows < 1000
        return pass_(graph, *args, **kwargs)

    monkeypatch.setattr(pipeline, "run", asking)
    outcome = run(dataclasses.replace(NORM, dynamic=True, sizes=(8,)), "interpreter")
    assert (outcome.status, outcome.kind) == ("failed", "effects") and "< 1000" in outcome.message, outcome
