"""Random programs of tests/support/programs.py; that a bug would be found. tools/fuzz.py writes a failing one
as a test: `python tools/fuzz.py --device interpreter --workers 1 --seed 3 --cases 1 --out fuzz`."""

from __future__ import annotations

import dataclasses
import os
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
SEEDS = int(os.environ.get("MIXORDER_FUZZ_SEEDS", "1"))

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's, of planted infinities


@pytest.mark.parametrize("seed", range(SEEDS))
def test_random_programs(seed: int) -> None:
    check(make(seed, small=True), "interpreter")


@pytest.mark.parametrize("first", range(0, len(WORDS), CHUNK))
def test_every_operator(first: int) -> None:
    """In programs that have many of them, in the first in which all fit."""
    words = WORDS[first : first + CHUNK]
    made = (make(seed, small=True, wanted=words) for seed in range(200))
    program = max(made, key=lambda p: len({s.op for s in p.steps} & {*words}))
    check(program, "interpreter", stock=False)


def of(space: str, steps: str, out: str, **how: Any) -> Program:
    """A program by its sizes and the dims that either side reduces, by its steps, each a name, an operator,
    arguments and a number, and by its results and how they are viewed."""
    shape, inner, outer = (tuple(map(int, part.split())) for part in space.split("|"))
    made = []
    for name, op, *args in map(str.split, steps.split(",")):
        number = int(args.pop()) if args[-1].isdigit() else 0
        made.append(Step(name, op, tuple(args), number))
    outputs = tuple(
        (name, *view) if view else (name, "plain") for name, *view in map(str.split, out.split(","))
    )
    return Program(shape, inner, outer, tuple(made), outputs, **how)


PAIR = "v0 row_sum x y, v1 sub_mul_row y x v0, v2 col_sum x y"
NORM = of("5 12 | 1 | 0", PAIR, "v1, v2")
HALF = {"dtype": "float16", "weight_dtype": "float16"}
BFLOAT = {"dtype": "bfloat16", "weight_dtype": "bfloat16"}
DOUBLE = {"dtype": "float64", "weight_dtype": "float64"}
DYNAMIC: dict[str, Any] = {"dynamic": True, "oblivious": True}

BUGS = {
    # The variance of symbolic rows divides by a number that is no tensor.
    "variance": of(
        "9 5 | 1 | 0",
        "v0 mul_row x r, v1 col_var v0 2, v2 row_sum x y, v3 sub_mul_row y x v2",
        "v1, v3",
        backward=True,
        dynamic=True,
    ),
    # Truth values are stored transposed, in a graph that is compiled for no rows.
    "no rows": of(
        "1 7 12 | 2 | 0 1",
        "v1 row_bool_eq ri ri 4, v6 col_sum_flat x y 1",
        "v1 twice, v6 transposed",
        layouts=("contiguous", "offset", "contiguous", "expanded"),
        sizes=(0, 2),
        **DYNAMIC,
    ),
    # A transposed tensor is copied, of which nothing says whether it has a single row.
    "copied": of(
        "13 12 | 1 | 0",
        "v0 times_row_count x ri 4, v1 col_sum y y 3, v2 row_sum y y 5, v3 sub_mul_row v0 v0 v2 3",
        "v3, v1",
        layouts=("contiguous", "transposed", "contiguous", "contiguous"),
        backward=True,
        sizes=(16,),
        **DYNAMIC,
    ),
    # A custom operator's result, less what it is computed from: nothing is left of values that are rounded.
    "rounded": of(
        "2 3 4 5 | 2 3 | 0 2 3",
        "v5 mul_row x r 1, v7 note v5 4, v8 row_sum x x 3, v9 col_sum_flat v5 v7 5",
        "v8, v9",
        **HALF,
    ),
    # Infinities are cast to float8: eager's casts of them are of the version, and none is as a kernel's.
    "saturated": of(
        "5 12 | 1 | 0",
        f"{PAIR}, v3 fp8_e5m2 x, v4 through_fp8 y x",
        "v1, v2, v3, v4",
        planted=(("x", 7, "inf"), ("y", 33, "-inf")),
    ),
    # The product of an expanded tensor and a transposed one lies otherwise by eager operators than by fakes.
    "expanded": of(
        "1 3 3 | 2 | 0",
        "v0 one_factor y w, v1 col_sum y v0 5, v2 row_sum y v0 2, v3 temperature v0 v1",
        "v3, v1, v2",
        layouts=("contiguous", "transposed", "contiguous", "contiguous"),
        backward=True,
        **HALF,
    ),
    # A sum of all elements goes to a tensor with fewer axes than the sums that it was added up from.
    "fewer axes": of(
        "1 3 4 2 | 2 3 | 0 2 3",
        "v0 col_sum y x 4, v1 one_factor y v0 5, v2 temperature y v0 3, v3 row_sum y v1 5",
        "v0, v2 sliced, v3, v1 flat",
        dtype="float16",
        layouts=("contiguous", "channels-last", "contiguous", "offset"),
        backward=True,
    ),
    # Of a single row, which programs share, no tensor has an index along both axes.
    "shared row": of(
        "1 40 1 | 1 | 0 1",
        "v0 one_factor x w 3, v1 col_sum x y 2, v2 temperature v0 v1 4, v3 row_sum y v2 3",
        "v2 transposed, v1, v3 sliced",
        layouts=("contiguous", "contiguous", "channels-last", "contiguous"),
        backward=True,
        strategy="cooperative",
        seed=1,
        **BFLOAT,
    ),
    # Moments in double precision, whose parts have counts that are divided.
    "moments": of(
        "2 1205 5 | 1 | 0 1",
        "v0 two_zeros y y 1, v3 mul_col y w 3, v4 through_fp8 x v3 1, v6 col_max_of_product x y 1,"
        "v9 padded_both v0 v4 3, v10 row_sum v4 v9 2, v11 elu_between x v6 4, v13 col_sum v3 v11 3",
        "v11 transposed, v10 transposed, v13 sliced",
        fp8_dtype="float8_e5m2",
        **DOUBLE,
    ),
    # A piece of a softmax with a sink, which a kernel reads as it lies when it is computed piecewise.
    "piece": of(
        "8 2 16 | 1 2 | 0",
        "v1 position x y 4, v3 normed_head v1 v1 3, v4 gated_half v3 v3 4, v5 sink v1 v4 2,"
        "v6 gate_of_all v3 v3 1, v8 row_sum v6 v3 3, v10 col_sum v5 v4 3, v11 normed_apart v5 v10 3,"
        "v14 sink v6 v11 1",
        "v14 flat, v10 twice, v8",
        layouts=("contiguous", "padded", "padded", "channels-last"),
        backward=True,
        seed=761025,
    ),
    # A sum's result has an order that only its users tell.
    "gated": of(
        "2 5 16529 | 0 2 | 0 2",
        "v0 col_sum y y 1, v1 gated_half y y 4, v2 row_sum v1 y 1, v3 mul_col y v0 5, v4 gate_along x v3 5",
        "v0 flat, v4, v2 transposed, v3",
        backward=True,
        **DOUBLE,
    ),
    # A piece of a row of 12, of a symbolic batch whose hint is 1.
    "sink": of(
        "1 2 11 | 2 | 0",
        "v0 col_sum y y 2, v1 gate_of_all x y 2, v2 sink y y 2, v3 position v1 v2 5, v4 row_sum v3 v3 5,"
        "v5 row_sum v2 v2 5, v6 sub_mul_row v2 v2 v4 3",
        "v0 twice, v6, v5 flat, v4 transposed",
        backward=True,
        sizes=(4, 1),
        **DYNAMIC,
    ),
    # A tile of one row and one column is rounded.
    "one column": of(
        "2 1 1 | 2 | 0 1",
        "v0 row_sum x y 2, v1 turned_row y v0 2, v2 col_sum y v1 1",
        "v0 twice, v1 sliced, v2 sliced",
        dtype="bfloat16",
        backward=True,
        dynamic=True,
        split_size=64,
        sizes=(1, 0),
    ),
}


@pytest.mark.parametrize("program", BUGS.values(), ids=BUGS)
def test_programs_in_which_a_bug_was_found(program: Program) -> None:
    check(program, "interpreter", stock=False)


# In one row the mean square rounds to 1 or, as eager sums it, to the number behind: `y - y * v2` is 0 or not.
JUMP = of(
    "3 2 12 | 2 | 1",
    "v2 row_sum y y 3, v4 sub_mul_row y y v2 3, v7 col_sum_flat v4 v4 5, v9 signed_zero x v4 2",
    "v7, v9",
    backward=True,
    split_size=1,
    seed=501772,
    **BFLOAT,
)


def test_what_jumps_beside_the_inputs_in_eager_as_well_is_no_failure() -> None:
    assert run(JUMP, "interpreter").status == "torch"


@pytest.mark.parametrize(
    ("strategy", "found"),
    [
        ("", "persistent"),
        ("cooperative", "cooperative, 2 programs to 2 rows"),
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
EFFECTS = (
    "v3 all_reduce y, v0 row_sum x v3, v1 sub_mul_row y x v0, v2 col_sum x v3, v4 note_col v2 1,"
    "v5 noise_row r, v6 note_row v5 2"
)


@pytest.mark.parametrize("backward", [False, True])
def test_effects_are_fused_around(backward: bool) -> None:
    steps = EFFECTS if backward else f"{EFFECTS}, v7 bump y x 3"
    outcome = run(of("5 12 | 1 | 0", steps, "v1, v4, v6", backward=backward), "interpreter")
    assert outcome.status == "ok" and outcome.fused, outcome


def test_a_moved_effect_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    pass_ = pipeline.run

    def moving(graph: Graph, *args: Any, **kwargs: Any) -> Any:
        result = pass_(graph, *args, **kwargs)
        first, *_, last = (n for n in graph.nodes if n.name in sequence(graph))
        graph.output_node().prev.append(first) if not first.users else last.append(first)
        return result

    monkeypatch.setattr(pipeline, "run", moving)
    steps = f"v8 noise_row r, {PAIR}, v9 noise_col w"
    outcome = run(of("5 12 | 1 | 0", steps, "v1, v2, v8, v9"), "interpreter")
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
