"""Rows held in several chunks: each column once, in every class of loop, and nothing from beyond the end."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from checked import check_case
from graphs import bf16, f32
from running import OFF, ON, check_gradients, compiled, exact_gradients, gradients, run_fused
from support.cases import CASES
from torch import nn

from mixorder.plugin import compile_for_interpreter
from mixorder.report import RegionRecord, collect
from mixorder.schedule.constants import FITTED, Constants
from mixorder.schedule.device import H200, DeviceInfo
from mixorder.schedule.facts import Facts
from mixorder.schedule.plan import Plan
from mixorder.strategies.persistent import PERSISTENT

NORMS: dict[str, Callable[[int], nn.Module]] = {
    "layer": nn.LayerNorm,
    "rms": lambda n: nn.RMSNorm(n, eps=1e-6),
}
# Whole chunks, lanes beyond the end of the last one, and the most chunks there are.
CHUNKS = {96: 3, 160: 5, 304: 5, 768: 3, 896: 7}


@pytest.fixture(autouse=True)
def chunked(monkeypatch: pytest.MonkeyPatch, plan_with: Callable[..., None]) -> None:
    """Chunks wherever they save a lane, and few programs, so that tiles have several rows."""
    constants = dataclasses.replace(FITTED, chunk_saving=0.01, min_chunk=32)
    device = dataclasses.replace(H200, num_sm=2)

    def choose(facts: Facts, device: DeviceInfo, split_size: int, _: Constants = FITTED) -> Plan:
        return PERSISTENT.choose(facts, device, split_size, constants)

    plan_with(device=device, strategies=(dataclasses.replace(PERSISTENT, choose=choose),))


def only(records: list[Any]) -> RegionRecord:
    (record,) = records
    assert isinstance(record, RegionRecord)
    return record


@pytest.mark.parametrize(
    ("norm", "dtype", "cols"),
    # Seven chunks of 16-byte accesses are more than a thread holds in bf16.
    [("layer", bf16, cols) for cols in CHUNKS if cols != 896] + [("rms", f32, cols) for cols in CHUNKS],
)
def test_norms(norm: str, cols: int, dtype: torch.dtype) -> None:
    module, x = NORMS[norm](cols).to(dtype), torch.randn(37, cols, dtype=dtype)
    dy = torch.randn_like(x)
    with collect() as records:  # with the rows of a program given, no search replaces the rules' tile
        ours = gradients(module, x, dy, dataclasses.replace(ON, split_size=5))
    schedule = only(records).schedule
    assert schedule.chunks == CHUNKS[cols] and schedule.lanes >= cols
    assert schedule.tile_rows > 1 and 37 % schedule.tile_rows
    check_gradients(ours, module, x, dy, cols)


@pytest.mark.parametrize("inner", ["sum", "amax", "amin", "prod", "any"])
def test_every_kind_of_reduction(inner: str) -> None:
    """A zero or a one in the lanes of the last chunk that lie beyond the end would show."""

    def reduced(x: torch.Tensor, dim: int) -> torch.Tensor:
        return (x > 0).any(dim) if inner == "any" else getattr(x, inner)(dim)

    def function(x: torch.Tensor) -> Any:
        value = sign * torch.cos(x)  # masked lanes: 1 or -1, as x is 0 there
        return reduced(value, 1), reduced(value, 0)

    sign = -1 if inner in ("amax", "any") else 1
    x = 1 + torch.rand(5, 88) / 16
    with collect() as records:
        ours = run_fused(function, (x,))
    assert only(records).schedule.chunks == 3
    for mine, truth in zip(ours, function(x.double()), strict=True):
        assert torch.allclose(mine.double(), truth.double(), rtol=1e-4, atol=0)


FAMILY = {
    "Qwen3 QK-norm, transpose, RoPE": (2, 5, 4, 96),  # a gather within the row
    "Cohere QK-norm": (2, 5, 3, 96),  # a batch axis
    "conv bias and gate": (5, 3, 8, 12),  # a common axis
    "adaLN": (3, 5, 96),
    "cat after": (3, 5, 96),  # loads by a predicate
    "softmax with bias": (3, 2, 5, 96),
}


@pytest.mark.parametrize("name", FAMILY)
def test_the_family(name: str) -> None:
    with collect() as records:
        check_case(CASES[name], FAMILY[name], f32, "cpu", compiled(ON), compiled(OFF))
    assert any(r.schedule.chunks > 1 for r in records if isinstance(r, RegionRecord))


def test_symbolic_rows() -> None:
    module = nn.LayerNorm(96)
    torch._dynamo.reset()
    compiled = torch.compile(module, backend=compile_for_interpreter(ON), dynamic=True)
    with collect() as records:
        for rows in (37, 5):
            x, dy = torch.randn(rows, 96, requires_grad=True), torch.randn(rows, 96)
            ours = torch.autograd.grad(compiled(x), [x, *module.parameters()], dy)
            for mine, truth in zip(ours, exact_gradients(module, x.detach(), dy), strict=True):
                assert float((mine - truth).norm()) <= 1e-6 * float(truth.norm())
    assert only(records).schedule.chunks == 3


def test_a_bad_row_poisons_only_itself_and_the_sums() -> None:
    module, x = nn.LayerNorm(304), torch.randn(9, 304)
    dy = torch.randn_like(x)
    clean, *_ = gradients(module, x, dy, ON)
    dy[4, 303] = float("nan")
    dirty, dw, db = gradients(module, x, dy, ON)
    kept = [0, 1, 2, 3, 5, 6, 7, 8]
    assert torch.equal(clean[kept], dirty[kept]) and dirty[4].isnan().all()
    assert dw[:303].isfinite().all() and db[303].isnan()
