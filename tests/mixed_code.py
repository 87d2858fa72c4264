"""Inductor's code for programs of `upstream.LEFT`, for a GPU that is not there: which has mix-order kernels.

`main` is run in a process of its own, after `fake_cuda.load()`: see tests/inductor/test_mix_order.py.
"""

from __future__ import annotations

import json
import sys
from typing import Any
from unittest import mock

import torch
import torch._inductor.scheduler as scheduler
import triton
from support.compilers import OURS, STOCK
from support.stand_in import Driver
from torch._inductor.graph import GraphLowering
from torch._subclasses.fake_tensor import FakeTensorMode
from upstream import LEFT, Wound

WAYS: dict[str, dict[str, Any]] = {
    "stock": STOCK,
    "default": OURS,
    "left alone": OURS | {"mixorder_min_numel": 2**62, "triton.mix_order_reduction": True},
}


class Stop(Exception):
    pass


def code_of(wound: Wound, options: dict[str, Any]) -> str:
    """The code of a graph, which is not loaded."""
    codes: list[str] = []

    def stop(graph: GraphLowering) -> None:
        codes.append(graph.codegen()[0].value)
        raise Stop

    torch._dynamo.reset()
    with FakeTensorMode(allow_non_fake_inputs=True):
        shape = wound.case.shapes.training
        inputs = [torch.empty(shape, dtype=wound.dtype, device="cuda") for _ in wound.case.inputs]
    several = len(inputs) > 1
    for tensor in inputs if several else ():
        torch._dynamo.mark_dynamic(tensor, 1, min=2, max=4096)
    function = wound.case.make(*shape)
    compiled = torch.compile(function, options=options | wound.options, dynamic=None if several else False)
    with mock.patch.object(GraphLowering, "_compile_to_module", stop):
        try:
            compiled(*inputs)
        except Exception as error:
            assert "Stop" in repr(error), error
    (code,) = codes
    return code


def main() -> None:
    """By program and way: whether there is a mix-order kernel of Inductor's."""
    scheduler.has_triton = lambda *_: True  # type: ignore[attr-defined]
    triton.runtime.driver.set_active(Driver())
    found = {
        name: {way: "MixOrderReductionGrid" in code_of(wound, options) for way, options in WAYS.items()}
        for name, wound in LEFT.items()
    }
    json.dump(found, sys.stdout)
