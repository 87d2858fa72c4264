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

import mixorder
import mixorder.inspection.capture  # keeps the module that it finds when it is imported: not the recorder's
from mixorder.options import Options

Recorder = list[tuple[torch.fx.Graph, Options, bool]]
"""Per call of the pipeline: the graph, the options, and the built-in mix-order switch."""


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
