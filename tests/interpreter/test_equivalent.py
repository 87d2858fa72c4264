"""Spellings that become one before regions are looked for: no less exact than the unfused ones."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from graphs import bf16
from running import OFF, ON, check, compiled, gradients
from support.spellings import PAIRS, TRAINED, Program, Words

from mixorder.report import RegionRecord, collect

SPELLED: dict[str, tuple[str, dict[str, int]]] = {
    "the mean of a permuted tensor": ("rms", {"mean": 5}),
    "of batches": ("rms_in_float", {"mean": 5, "shape": 1}),
    "two of them": ("layer", {"mean": 5}),
    "of heads": ("of_heads", {"mean": 5}),
    "behind it, sums of columns": ("centred", {"mean": 5}),
    "sums of two permuted tensors": ("sums", {"total": 3, "columns": 3}),
    "slices that are written": ("of_halves", {"joined": 3}),
    "a gate, whose gradient has a constant": ("gated", {}),
}


class Exact(Words):
    def float(self, x: Any) -> Any:
        return x.double()

    def half(self, x: Any) -> Any:
        return x


@pytest.mark.parametrize("name", SPELLED)
def test_a_spelling(name: str) -> None:
    base, chosen = SPELLED[name]
    trained, x = base in TRAINED, torch.randn(96, 1280).to(bf16)
    model = Program([(TRAINED | PAIRS)[base]], chosen, x.to("meta")).to_empty(device="cpu")
    for vector in model.parameters():
        torch.nn.init.normal_(vector.requires_grad_(trained).data)

    def results(options: Any) -> Any:
        return gradients(model, x, dy, options) if trained else compiled(options)(model)(x)

    dy = torch.randn_like(model(x)) if trained else None
    with collect() as records:
        ours = results(ON)
    assert records and all(isinstance(r, RegionRecord) for r in records)
    stock = results(OFF)
    inputs = [t.detach().double().requires_grad_(trained) for t in (x, *model.parameters())]
    exact = model.parts[0].base(Exact({}), *inputs)
    if trained:
        exact = torch.autograd.grad(exact, inputs, dy.double().view(exact.shape))
    check(ours, stock, tuple(t.double() for t in exact), 1280)
