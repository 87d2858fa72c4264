"""Calls of the pipeline, in place of the pipeline."""

from __future__ import annotations

import contextlib
import sys
import types
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch._functorch.config as functorch_config
import torch._inductor.config as config
from torch._inductor.graph import GraphLowering

import mixorder
import mixorder.inspection.capture  # keeps the module that it finds when it is imported: not the recorder's
from mixorder.options import Options

Recorder = list[tuple[torch.fx.Graph, Options, bool]]
"""Per call of the pipeline: the graph, the options, and the built-in mix-order switch."""

Lowered = list[tuple[bool, bool, bool]]
"""Per graph that Inductor lowers: whether mixorder, the built-in mix-order reduction and a pass are on."""


@contextlib.contextmanager
def lowering() -> Iterator[Lowered]:
    """The graphs that are lowered."""
    seen, original = Lowered(), GraphLowering.run

    def run(self: GraphLowering, *args: Any) -> Any:
        passes = config.post_grad_custom_post_pass
        seen.append((config.mixorder, config.triton.mix_order_reduction, passes is not None))  # type: ignore[attr-defined]
        return original(self, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GraphLowering, "run", run)
        yield seen


@contextlib.contextmanager
def recorded() -> Iterator[Recorder]:
    """The calls while the pipeline is replaced by a recorder. No graph comes from a cache."""
    seen: Recorder = []
    pipeline = types.ModuleType("mixorder.pipeline")

    def run(graph: torch.fx.Graph, options: Options) -> list[Any]:
        seen.append((graph, options, config.triton.mix_order_reduction))
        return []

    pipeline.run = run  # type: ignore[attr-defined]
    pipeline.mark_joint = lambda graph, options: False  # type: ignore[attr-defined]
    torch._dynamo.reset()
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "mixorder.pipeline", pipeline)
        patch.setattr(mixorder, "pipeline", pipeline, raising=False)
        with config.patch(fx_graph_cache=False), functorch_config.patch(enable_autograd_cache=False):
            yield seen
    torch._dynamo.reset()
