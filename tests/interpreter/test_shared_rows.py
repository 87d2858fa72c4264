"""Rows that several programs share: at widths where they must, and at small ones where they are made to.

In the interpreter programs run one after the other. Of the programs that share a row all but the last find
words missing, and make their second attempt; the last one goes the way that all should go on a GPU.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from checked import check_case
from graphs import HFRMSNorm, bf16, f16, f32, pair, random_function, traced, traced_rows
from running import OFF, ON, check, exact_gradients, gradients
from torch import nn
from torch.fx import GraphModule, Interpreter

from mixorder import pipeline
from mixorder.codegen.exchange import EMPTY
from mixorder.errors import TooWide
from mixorder.interpret import _map_inline_asm, _map_libdevice, compile_for_interpreter
from mixorder.report import RegionRecord, collect
from mixorder.schedule.device import DeviceInfo
from mixorder.schedule.schedule import Schedule, Tile
from mixorder.schedule.sharing import SharedWork

from cases import CASES  # isort: skip


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

    def __call__(self, work: SharedWork, device: DeviceInfo) -> Schedule:
        part_cols = -(-work.cols // self.parts)
        r0_block = 1 << (part_cols - 1).bit_length()
        splits = min(self.splits, -(-work.rows // self.xblock))
        tile = Tile(self.xblock, 4, 2)
        return Schedule(tile, r0_block, splits, 4, 4, self.parts, part_cols, self.depth)


FORCED = [
    Forced(parts=2),
    Forced(parts=3, depth=2, xblock=2),
    Forced(parts=4, depth=1, xblock=2, splits=1),
    Forced(parts=5, depth=3, xblock=1, splits=3),
    Forced(parts=7, depth=2, xblock=4, splits=2),
]


def force(monkeypatch: pytest.MonkeyPatch, schedule: Forced) -> None:
    """Every region that can be shared is, as `schedule` says; nothing is held or read twice."""

    def choose(*args: Any) -> Any:
        raise TooWide(99, "for the test")

    monkeypatch.setattr(pipeline, "choose", choose)
    monkeypatch.setattr(pipeline, "choose_shared", schedule)


@pytest.fixture(params=FORCED, ids=lambda f: f"{f.parts}x{f.depth}x{f.xblock}x{f.splits}")
def forced(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Forced:
    force(monkeypatch, request.param)
    return request.param


@pytest.fixture(autouse=True)
def interpreted() -> None:
    _map_libdevice()
    _map_inline_asm()


def fused_graph(function: Callable[..., Any], args: Any, make: Any = traced) -> tuple[GraphModule, list[Any]]:
    """The rewritten graph of a function, and what became of its regions."""
    graph = make(function, *[(tuple(a.shape), a.dtype) for a in args])
    with collect() as records:
        pipeline.run(graph, ON)
    graph.lint()
    return GraphModule({}, graph), records


def shared(records: list[Any]) -> list[RegionRecord]:
    return [r for r in records if isinstance(r, RegionRecord) and r.schedule.parts > 1]


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


def test_forced_two_stages(forced: Forced) -> None:
    args = torch.randn(11, 40), torch.randn(11, 40), torch.randn(40)
    graph, records = fused_graph(two_stages, args)
    assert len(shared(records)) == 1
    close(Interpreter(graph).run(*args), two_stages, args)
