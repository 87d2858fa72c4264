"""Blocks of published models, whose inputs and gradients lie in random orders: gradients versus eager's."""

from __future__ import annotations

import copy
import os
from random import Random
from typing import Any

import pytest
import torch
from running import ON, Tensors, check, compiled
from support.blocks import BLOCKS, Block, in_any_order

from mixorder.report import RegionRecord, collect

pytest.importorskip("transformers")


NAMES = os.environ.get("MIXORDER_BLOCKS", "segformer,swin")  # one comma-separated list; "all" takes minutes


@pytest.mark.parametrize("name", BLOCKS if NAMES == "all" else NAMES.split(","))
def test_maps_of_features_in_any_order(name: str) -> None:
    block, draw = Block(name), Random(0)
    x = in_any_order(draw, torch.randn(block.shape))
    upstream = [in_any_order(draw, torch.randn_like(y)) for y in block(x.requires_grad_())]

    def gradients(function: Any, module: Any, dtype: torch.dtype) -> Tensors:
        args = [x.detach().to(dtype).requires_grad_(), *module.parameters()]
        results = function(args[0])
        given = [t.to(dtype) for t in upstream]
        found = torch.autograd.grad(results, args, given, allow_unused=True, materialize_grads=True)
        return tuple(found)

    with collect() as records:
        ours = gradients(compiled(ON)(block), block, torch.float32)
    assert sum(isinstance(r, RegionRecord) for r in records) >= (8 if name in ("segformer", "swin") else 1)
    exact = gradients(wide := copy.deepcopy(block).double(), wide, torch.float64)
    # The gradient of a key's bias is zero, and its error is that of what cancels.
    scale = 1e-2 * max(float(t.norm()) for t in exact)
    check(ours, gradients(block, block, torch.float32), exact, x.numel(), scale)
