"""Each program in each way that can run it (tests/matrix.py), in Triton's interpreter.

Fresh buffers hold NaN (conftest.py): an element that no program writes shows.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import matrix
import pytest
import torch
from checked import check_case
from graphs import f32, snapshot, traced, traced_rows
from matrix import Case, Kinds, Way, cases, pairs_of_kinds
from running import OFF, ON, compiled, fused_graph
from support.cases import CASES
from torch._dynamo.utils import counters
from torch.fx import Interpreter
from triton.runtime.autotuner import Autotuner
from triton.runtime.interpreter import InterpreterBuilder

from mixorder import pipeline
from mixorder.plugin import prepare_interpreter
from mixorder.report import RegionRecord, collect

WAYS = {way.name: way for way in matrix.WAYS}


@pytest.fixture(autouse=True)
def words_are_inside(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each record that a program reads lies in the memory of one of its kernel's arguments."""
    prepare_interpreter()
    original, run = InterpreterBuilder.create_inline_asm, Autotuner.run
    memory: list[tuple[int, int]] = []
    inside: list[bool] = []

    def recorded(self: Any, *args: Any, **kwargs: Any) -> Any:
        tensors = [t for t in (*args, *kwargs.values()) if isinstance(t, torch.Tensor)]
        memory[:] = [(t.data_ptr(), t.numel() * t.element_size()) for t in tensors]
        return run(self, *args, **kwargs)

    @functools.wraps(original)  # so that it counts as prepared
    def create_inline_asm(self: Any, text: str, constraints: str, values: list[Any], *rest: Any) -> Any:
        if "mixorder_peek" in text or "mixorder_total" in text:
            address = int(values[0].data.flat[0])
            inside.append(any(start <= address < start + size for start, size in memory))
        return original(self, text, constraints, values, *rest)

    monkeypatch.setattr(Autotuner, "run", recorded)
    monkeypatch.setattr(InterpreterBuilder, "create_inline_asm", create_inline_asm)
    return inside


@pytest.mark.parametrize("case", cases(), ids=str)
def test_case(case: Case, plan_with: Callable[..., None], words_are_inside: list[bool]) -> None:
    """Also with other numbers of rows, none among them, and with a value that is not finite in one row."""
    way, space = case.way, case.space
    plan_with(**way.setting)
    args = matrix.arguments(case.function, space, case.dtype)
    make = functools.partial(traced_rows, symbolic=(space.row_dim,)) if case.symbolic else traced
    graph, record = fused_graph(case.on(space), args, make, split_size=way.split_size)
    run = Interpreter(graph).run
    assert way.took(record), record
    assert isinstance(record.space.rows, str) == case.symbolic
    now = space.shape[space.row_dim]
    others = (0, 1, now + 4)[case.function in matrix.NOT_EMPTY :] if case.symbolic else ()
    if record.schedule.group > 1:  # several programs of a row take much longer in the interpreter
        others = others[::2]
    for rows in (*others, now):
        space = space.with_rows(rows)
        args = matrix.arguments(case.function, space, case.dtype)
        function, terms = case.on(space), args[0].numel()
        ours = run(*args)
        matrix.check(ours, function, args, terms, case.function in matrix.ROUGH)
    assert all(words_are_inside) and bool(words_are_inside) == (record.schedule.group > 1)
    planted = matrix.plant(args[0], space)
    matrix.stays_in_its_row(run(*args), ours, function(*args), planted)
    for name, arg in zip(matrix.names(case.function), args, strict=True):
        if name == "w":  # before the first tile and beyond the last row, zeros are multiplied by it
            arg.view(-1)[arg.numel() // 2] = float("inf")
            for mine, theirs in zip(run(*args), function(*args), strict=True):
                assert torch.equal(mine.isfinite(), theirs.isfinite())


@pytest.mark.parametrize("kinds", pairs_of_kinds(), ids=str)
def test_masked_lanes_hold_the_identity(kinds: Kinds, plan_with: Callable[..., None]) -> None:
    """Tiles are partial in both directions."""
    plan_with(**WAYS[kinds.way].setting)
    args = kinds.arguments()
    function = functools.partial(kinds, kinds.space)
    graph, record = fused_graph(function, args, split_size=4)
    assert record.space.rows % record.schedule.tile_rows and record.schedule.tile_rows > 1
    ours = Interpreter(graph).run(*args)
    matrix.check(ours, function, args, args[0].numel())


# What needs whole modules: gathers within a row, loads by a predicate, several norms in one region.
FAMILY = {
    "chunks": {
        "Qwen3 QK-norm, transpose, RoPE": (2, 5, 4, 96),
        "Cohere QK-norm": (2, 5, 3, 96),
        "conv bias and gate": (5, 3, 8, 12),
        "adaLN": (3, 5, 96),
        "cat after": (3, 5, 96),
        "softmax with bias": (3, 2, 5, 96),
    },
    "shared 3x2x2x2": dict.fromkeys(name for name in [*CASES][::12] if name not in matrix.NOT_SHARED),
}


@pytest.mark.parametrize(("way", "name"), [(way, name) for way, names in FAMILY.items() for name in names])
def test_the_family(way: str, name: str, plan_with: Callable[..., None]) -> None:
    plan_with(**with_others(WAYS[way]))
    shape = FAMILY[way][name] or CASES[name].shapes.small
    with collect() as records:
        check_case(CASES[name], shape, f32, "cpu", compiled(ON), compiled(OFF))
    assert any(WAYS[way].took(r) for r in records if isinstance(r, RegionRecord))


def with_others(way: Way) -> dict[str, Any]:
    """The setting of a way, with rows for what it cannot run."""
    setting = way.setting
    others = () if way.name.startswith("shared") else (matrix.PERSISTENT,)
    return setting | {"strategies": (*setting["strategies"], *others)}


@pytest.mark.parametrize(
    ("function", "shape", "why"),
    [
        (lambda x: (x.sum(1), x.var(0)), (50, 40), {"declined:unsupported-op": 1}),
        (lambda x: (x.sum((1, 2)), x.sum((0, 1))), (5, 3, 11), {"declined:axis-class": 1}),
        (lambda x: (x.sum((1, 2)), x.sum((0, 2))), (5, 3, 11), {"declined:axis-class": 1}),
    ],
    ids=["variance of columns", "columns beside a common axis", "rows innermost"],
)
def test_what_is_not_fused_is_as_it_was(function: Any, shape: tuple[int, ...], why: dict[str, int]) -> None:
    graph = traced(function, (shape, f32))
    before = snapshot(graph)
    pipeline.run(graph, ON)
    assert snapshot(graph) == before and counters["mixorder"] == why
