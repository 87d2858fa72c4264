"""Rows that several programs share: at widths where they must, and at small ones where they are made to.

In the interpreter programs run one after the other. Of the programs that share a row all but the last find
words missing, and make their second attempt; the last one goes the way that all should go on a GPU.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from checked import check_case
from graphs import HFRMSNorm, bf16, f16, f32, pair, random_function, traced, traced_rows
from running import OFF, ON, check_gradients, compiled, gradients
from support.cases import CASES, Example
from torch import nn
from torch.fx import GraphModule, Interpreter

from mixorder import pipeline
from mixorder.errors import Decline, DeclineReason
from mixorder.plugin import prepare_interpreter
from mixorder.report import RegionRecord, collect
from mixorder.schedule.device import DeviceInfo
from mixorder.schedule.facts import Facts
from mixorder.schedule.plan import Exchanged, Launch, Plan, SecondStage, Walk
from mixorder.strategies.cooperative import COOPERATIVE
from mixorder.transform.cooperative import EMPTY


class WithResidual(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.sigmoid(self.norm(x))


class Chain(nn.Module):
    """A norm, and one of what it gives: sums of the second need those of the first."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.first, self.second = nn.RMSNorm(dim, eps=1e-6), nn.LayerNorm(dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.tanh(self.first(x)))


MODULES: dict[str, Callable[[int], nn.Module]] = {
    "layer": nn.LayerNorm,
    "rms": lambda n: nn.RMSNorm(n, eps=1e-6),
    "hf": HFRMSNorm,
    "residual": WithResidual,
    "chain": Chain,
}


@dataclasses.dataclass(frozen=True)
class Forced:
    """A schedule's numbers, for any width."""

    parts: int
    depth: int = 1
    xblock: int = 1
    splits: int = 2
    shifted: bool = False

    def __call__(self, work: Facts, device: DeviceInfo, split_size: int = 0) -> Plan:
        part_cols = -(-work.cols // self.parts)
        lanes, parts, period = 1 << (part_cols - 1).bit_length(), self.parts, 1
        splits = min(self.splits, -(-work.rows // self.xblock))
        if self.shifted and work.period > 1 and work.cols > 16:
            part_cols = -(-part_cols // 16) * 16
            lanes, parts = 1 << (part_cols + 15).bit_length(), -(-work.cols // part_cols)
            splits, period = self.splits * work.period, work.period
        rows = Walk(split=splits, tile=self.xblock, period=period)
        columns = Walk(group=parts, part=part_cols, tile=lanes)
        return Plan((rows, columns), Launch(4, 2), SecondStage(4, 4), Exchanged(self.depth))


FORCED = [
    Forced(parts=2),
    Forced(parts=3, depth=2, xblock=2),
    Forced(parts=4, depth=1, xblock=2, splits=1),
    Forced(parts=5, depth=3, xblock=1, splits=3),
    Forced(parts=7, depth=2, xblock=4, splits=2),
    Forced(parts=2, depth=2, xblock=2, splits=1, shifted=True),
]


@pytest.fixture
def force(plan_with: Callable[..., None]) -> Callable[[Forced], None]:
    """Has every region that can be shared be, as a schedule says; no other strategy is tried."""
    return lambda schedule: plan_with(strategies=(dataclasses.replace(COOPERATIVE, choose=schedule),))


@pytest.fixture(params=FORCED, ids=lambda f: f"{f.parts}x{f.depth}x{f.xblock}x{f.splits}")
def forced(request: pytest.FixtureRequest, force: Callable[[Forced], None]) -> Forced:
    force(request.param)
    return request.param


@pytest.fixture(autouse=True)
def interpreted() -> None:
    prepare_interpreter()


def fused_graph(function: Callable[..., Any], args: Any, make: Any = traced) -> tuple[GraphModule, list[Any]]:
    """The rewritten graph of a function, and what became of its regions."""
    graph = make(function, *[(tuple(a.shape), a.dtype) for a in args])
    with collect() as records:
        pipeline.run(graph, ON)
    graph.lint()
    return GraphModule({}, graph), records


def shared(records: list[Any]) -> list[RegionRecord]:
    return [r for r in records if isinstance(r, RegionRecord) and r.schedule.group > 1]


def close(ours: Any, function: Callable[..., Any], args: Any, slack: float = 1e-5) -> None:
    plain, exact = function(*args), function(*(a.double() if a.is_floating_point() else a for a in args))
    for mine, theirs, truth in zip(ours, plain, exact, strict=True):
        assert mine.dtype == theirs.dtype and mine.shape == theirs.shape
        error, reference = (float((t.double() - truth).norm()) for t in (mine, theirs))
        assert error <= 2 * reference + slack * float(truth.norm()), (tuple(mine.shape), error, reference)


def two_stages(x: torch.Tensor, dy: torch.Tensor, w: torch.Tensor) -> Any:
    """A row's scale from its largest value, then a sum that needs the scale, as in BitLinear."""
    scale = 127.0 / x.abs().amax(-1, keepdim=True).clamp(min=1e-5)
    q, scaled = (x * scale).round(), dy * w
    return scaled - q * (q * scaled).sum(-1, keepdim=True) * 1e-4, (dy * q).sum(0)


def dropped(x: torch.Tensor, dy: torch.Tensor, keep: torch.Tensor) -> Any:
    """A mask of bools is carried with the rest."""
    dx, dw = pair(torch.where(keep, x * 2, 0.0), dy)
    return torch.where(keep, dx, 0.0), dw


def extremes(x: torch.Tensor, dy: torch.Tensor) -> Any:
    low, high = x.amin(1, keepdim=True), x.amax(1, keepdim=True)
    return (x - low) / (high - low), (x * high).amax(0), (dy + low).amin(0), dy.sum(1)


def products(x: torch.Tensor, dy: torch.Tensor) -> Any:
    near_one = 1 + x * 0.1
    return dy * near_one.prod(1, keepdim=True), near_one.prod(0), (x * dy).sum(1)


def modulated(x: torch.Tensor, dy: torch.Tensor, scale: torch.Tensor, rstd: torch.Tensor) -> Any:
    """adaLN with a scale for every element: its gradient is another full tensor."""
    hat, dn = x * rstd, dy * (1 + scale)
    return rstd * (dn - hat * (dn * hat).mean(1, keepdim=True)), dy * hat, dy.sum(0)


def many(x: torch.Tensor, dy: torch.Tensor) -> Any:
    """More reductions of a kind than one read brings in."""
    rows = [(x * x.roll(0) + i * dy).sum(1, keepdim=True) for i in range(9)]
    return sum(dy * r for r in rows), (x * dy).sum(0), x.amax(1)


def three_stages(x: torch.Tensor, dy: torch.Tensor) -> Any:
    centred = x - x.mean(1, keepdim=True)
    hat = centred / centred.abs().amax(1, keepdim=True)
    return dy - hat * (hat * dy).sum(1, keepdim=True), (hat * dy).sum(0)


def of_rows_alone(x: torch.Tensor, dy: torch.Tensor, w: torch.Tensor) -> Any:
    """What is carried may be a value per row, or be needed in the last stage alone."""
    norm = x.square().sum(1, keepdim=True).sqrt()
    return x / norm * w + dy, (x / norm).sum(0), norm


def labelled(logits: torch.Tensor, labels: torch.Tensor, lse: torch.Tensor) -> Any:
    """The backward of cross-entropy: of a row's label, 64 bits are carried."""
    hits = labels == torch.arange(logits.shape[1], device=logits.device)
    scaled = torch.where(hits & (labels != 3), -1.0, 0.0)
    dx = scaled - torch.exp(logits - lse) * scaled.sum(1, keepdim=True)
    return dx, dx.sum(0)


def argument(name: str, rows: int, cols: int) -> torch.Tensor:
    match name:
        case "labels":
            return torch.randint(cols, (rows, 1))
        case "lse":
            return torch.randn(rows, 1)
        case "w":
            return torch.randn(cols)
        case "rstd":
            return torch.rand(rows, 1) + 0.5
        case "keep":
            return torch.rand(rows, cols) > 0.3
    return torch.randn(rows, cols)


def arguments(function: Callable[..., Any], rows: int, cols: int) -> tuple[torch.Tensor, ...]:
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    return tuple(argument(name, rows, cols) for name in names)


FUNCTIONS = [two_stages, dropped, extremes, products, modulated, many, three_stages, of_rows_alone, labelled]


# The interpreter takes its time: each function with two of the schedules.
PAIRS = [(f, FORCED[(i + j) % len(FORCED)]) for i, f in enumerate(FUNCTIONS) for j in (0, 2)]
PAIRS += [(f, FORCED[-1]) for f in FUNCTIONS]


@pytest.mark.parametrize(
    ("function", "forced", "shape"),
    [(*pair, ((9, 24), (2, 23))[i % 2]) for i, pair in enumerate(PAIRS)],
    indirect=["forced"],
)
def test_functions(function: Callable[..., Any], shape: tuple[int, int], forced: Forced) -> None:
    rows, cols = shape
    args = arguments(function, rows, cols)
    graph, records = fused_graph(function, args)
    assert len(shared(records)) == len(records) == 1
    assert shared(records)[0].schedule.lag == forced.depth
    close(Interpreter(graph).run(*args), function, args)


class Rerun(Interpreter):
    """Runs a graph again with the words that the last run left."""

    def __init__(self, graph: GraphModule) -> None:
        super().__init__(graph)
        self.words: torch.Tensor | None = None
        self.empty = 0

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if target is torch.ops.aten.full.default and args[1] == EMPTY and kwargs["dtype"] == torch.int32:
            if self.words is None:
                self.words = super().call_function(target, args, kwargs)
            return self.words
        result = super().call_function(target, args, kwargs)
        if isinstance(result, dict) and "mailbox_ptr" in result:
            self.words = result["mailbox_ptr"]
        return result


def missing(words: torch.Tensor, schedule: Plan, rows: int) -> int:
    """Words of parts that have not been told, of the rows of all tiles; others are never written."""
    tile_rows = schedule.tile_rows * schedule.period
    lanes = 1 << (schedule.group - 1).bit_length()
    records = words.view(rows + tile_rows, -1, lanes)
    tile_rows *= -(-rows // tile_rows)
    assert bool((records[:, :, schedule.group :] == EMPTY).all())
    assert bool((records[tile_rows:] == EMPTY).all())
    return int((records[:tile_rows, :, : schedule.group] == EMPTY).sum())


def bits(t: torch.Tensor) -> torch.Tensor:
    return t.contiguous().view(torch.uint8)


@pytest.mark.parametrize(("function", "forced"), PAIRS[::2], indirect=["forced"])
def test_both_ways_give_the_same_bits(function: Callable[..., Any], forced: Forced) -> None:
    """First most programs find words missing; at last all words are there, and each reads them."""
    rows, cols = 7, 24
    args = arguments(function, rows, cols)
    graph, records = fused_graph(function, args)
    (record,) = shared(records)
    rerun = Rerun(graph)
    first = rerun.run(*args)
    stages = 1 + record.kernels[0].text.count("failed")  # no more than that
    for _ in range(stages):
        before = rerun.words
        again = rerun.run(*args)
    assert rerun.words is not None and before is not None
    assert [missing(words, record.schedule, rows) for words in (before, rerun.words)] == [0, 0]
    for mine, theirs in zip(first, again, strict=True):
        assert torch.equal(bits(mine), bits(theirs))


def test_a_wrong_word_is_seen_in_the_result(force: Callable[[Forced], None]) -> None:
    """The test above would not fail if words were never read."""
    force(Forced(parts=3, depth=2, xblock=2))
    args = arguments(modulated, 12, 40)
    graph, _ = fused_graph(modulated, args)
    rerun = Rerun(graph)
    first = rerun.run(*args)
    assert rerun.words is not None
    rerun.words = rerun.words.clone().fill_(0)
    assert not torch.equal(first[0], rerun.run(*args)[0])


@pytest.mark.parametrize(
    ("function", "planted", "forced"),
    [
        (modulated, float("nan"), FORCED[1]),
        (modulated, float("inf"), FORCED[1]),
        (two_stages, -float("inf"), FORCED[4]),
        (three_stages, float("nan"), FORCED[0]),
    ],
    indirect=["forced"],
)
def test_what_is_not_finite_stays_in_its_row(
    function: Callable[..., Any], planted: float, forced: Forced
) -> None:
    args = arguments(function, 7, 40)
    graph, _ = fused_graph(function, args)
    clean = Interpreter(graph).run(*args)
    args[0][4, 17] = planted
    ours, eager = Interpreter(graph).run(*args), function(*args)
    for mine, before, theirs in zip(ours, clean, eager, strict=True):
        assert torch.equal(mine.isfinite(), theirs.isfinite())
        if mine.dim() == 2:
            others = torch.arange(7) != 4
            assert torch.equal(bits(mine[others]), bits(before[others]))


@pytest.mark.parametrize("planted", [float("nan"), float("inf")])
@pytest.mark.parametrize("forced", FORCED[1:3], indirect=True)
def test_a_weight_that_is_not_finite_spoils_its_column_alone(planted: float, forced: Forced) -> None:
    """Before the first tile and beyond the last row there are zeros, and zero times infinity is NaN."""

    def function(x: torch.Tensor, dy: torch.Tensor, w: torch.Tensor) -> Any:
        return dy * (x * dy).sum(1, keepdim=True), (x * w).sum(0), (x * dy).sum(0)

    args = arguments(function, 11, 40)
    args[2][7] = planted
    graph, records = fused_graph(function, args)
    assert len(shared(records)) == 1
    ours, eager = Interpreter(graph).run(*args), function(*args)
    for mine, theirs in zip(ours, eager, strict=True):
        torch.testing.assert_close(mine, theirs, equal_nan=True)


@pytest.mark.parametrize("rows", [1, 2, 9])
@pytest.mark.parametrize(
    ("function", "forced"), [(modulated, FORCED[1]), (two_stages, FORCED[3])], indirect=["forced"]
)
def test_symbolic_rows(function: Callable[..., Any], rows: int, forced: Forced) -> None:
    """Planned for 8 rows, run with others."""
    graph, records = fused_graph(function, arguments(function, 8, 40), traced_rows)
    assert len(shared(records)) == 1
    args = arguments(function, rows, 40)
    close(Interpreter(graph).run(*args), function, args)


@pytest.mark.parametrize(
    ("name", "forced", "dtype"),
    [(name, FORCED[i], (f32, bf16, f16)[i % 3]) for i, name in enumerate(MODULES)],
    indirect=["forced"],
)
def test_modules(name: str, dtype: torch.dtype, forced: Forced) -> None:
    module, x = MODULES[name](40).to(dtype), torch.randn(11, 40, dtype=dtype)
    dy = torch.randn_like(x)
    with collect() as records:
        ours = gradients(module, x, dy, ON)
    assert len(shared(records)) == len(records) == 1
    check_gradients(ours, module, x, dy, 40)


# With a batch or a common axis, or a reduction of bools; of a DiT block some norms have one.
NOT_SHARED = ["Cohere QK-norm", "adaLN", "DiT block", "mean over tokens after"]
NOT_SHARED += ["row and column prod, any, all", "conv bias and gate", "GroupNorm"]


@pytest.mark.parametrize("name", [name for name in CASES if name not in NOT_SHARED][::6])
def test_the_family(name: str, force: Callable[[Forced], None]) -> None:
    force(FORCED[1])
    check_case(CASES[name], CASES[name].shapes.small, f32, "cpu", compiled(ON), compiled(OFF))


@pytest.mark.parametrize("name", NOT_SHARED)
def test_what_cannot_be_shared_is_left_alone(name: str, force: Callable[[Forced], None]) -> None:
    force(FORCED[1])
    example = Example(CASES[name], CASES[name].shapes.small, f32, "cpu")
    with collect() as records:
        example.step(compiled(ON))()
    reasons = [r.reason for r in records if isinstance(r, Decline)]
    assert DeclineReason.ROW_TOO_WIDE in reasons


@pytest.mark.parametrize("seed", range(6))
def test_random_programs(seed: int, force: Callable[[Forced], None]) -> None:
    force(FORCED[seed % len(FORCED)])
    function = random_function(seed, 10, 12)
    args = torch.randn(10, 12), torch.randn(10, 12), torch.randn(12, 12)
    graph, _ = fused_graph(function, args)
    close(Interpreter(graph).run(*args), function, args)


@pytest.mark.parametrize(
    ("name", "rows", "cols", "dtype"),
    [
        ("layer", 3, 16400, bf16),
        ("rms", 9, 16385, bf16),
        ("residual", 2, 20000, f32),
        ("chain", 2, 16400, bf16),
    ],
)
def test_wide_rows(name: str, rows: int, cols: int, dtype: torch.dtype) -> None:
    """With the schedule that the pipeline chooses."""
    module, x = MODULES[name](cols).to(dtype), torch.randn(rows, cols, dtype=dtype)
    dy = torch.randn_like(x)
    with collect() as records:
        ours = gradients(module, x, dy, ON)
    assert len(shared(records)) == len(records) == 1
    check_gradients(ours, module, x, dy, cols)
