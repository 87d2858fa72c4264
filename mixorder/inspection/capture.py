"""Run a model through torch's front end and mixorder's pass, and keep what was fused and what was not.

Takes a module or function and its inputs, gives a `Report`. The graphs run as AOTAutograd made them, op
by op: no kernel of mixorder's or Inductor's is compiled or run, so that no GPU is needed.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch._functorch.config as functorch_config
import torch._inductor.config as inductor_config
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch._guards import detect_fake_mode
from torch.fx import GraphModule
from torch.utils import _pytree as pytree

from .. import _compat, pipeline
from ..options import Options
from ..report import collect
from ..schedule.device import device_info
from .backward import gradients, parameters_behind, roots_of
from .explanation import Report
from .found import GraphRecord
from .meta import faked, has_no_data
from .norms import norms_of
from .untouched import as_it_was, uncompiled

_NO_TUNING = {"max_autotune": False, "max_autotune_pointwise": False, "coordinate_descent_tuning": False}


def explain(
    function: Callable[..., Any],
    options: Mapping[str, Any] | None = None,
    dynamic: bool | None = None,
    seen: Callable[[GraphRecord], None] | None = None,
) -> Callable[..., Report]:
    """See `mixorder.explain`. `seen` is called with each graph as soon as it has been dealt with."""

    def explained(*args: Any, **kwargs: Any) -> Report:
        run, settings = uncompiled(function), _checked(options)
        tensors = _tensors(run, args, kwargs)
        if has_no_data(tensors):
            run, (args, kwargs) = faked(run, (args, kwargs))
            tensors = _tensors(run, args, kwargs)
        before = sum(counters["graph_break"].values())
        torch._dynamo.reset()
        try:
            with (
                as_it_was(run, tensors),
                inductor_config.patch(settings),
                functorch_config.patch(enable_autograd_cache=False),  # a hit runs no pass
                detect_fake_mode(tensors) or contextlib.nullcontext(),
            ):
                graphs: list[GraphRecord] = []
                ours = dataclasses.replace(Options.current(), **_FIXED)
                backend = _backend(graphs, seen, settings, ours)
                result = torch.compile(run, backend=backend, dynamic=dynamic)(*args, **kwargs)
                if roots := roots_of(result):
                    gradients(roots, parameters_behind(roots))
        finally:
            torch._dynamo.reset()
        device = next((t.device for t in tensors if t.is_cuda), torch.device("cpu"))
        return Report(
            tuple(graphs),
            norms_of(run, graphs),
            sum(counters["graph_break"].values()) - before,
            device_info(device),
            on_gpu=device.type == "cuda",
            versions=_compat.package_versions("mixorder", "torch", "triton"),
        )

    return explained


_FIXED: dict[str, Any] = {"enabled": True, "autotune": False, "interpret": True}


def _checked(options: Mapping[str, Any] | None) -> dict[str, Any]:
    """The options as a patch for Inductor's config, with nothing tuned."""
    Options.current()  # registers ours
    given = {key.replace("-", "_"): value for key, value in (options or {}).items()}
    if unknown := sorted(given.keys() - inductor_config._config.keys()):
        raise ValueError(f"unknown options: {', '.join(unknown)}; mixorder's begin with 'mixorder'")
    return {**given, **_NO_TUNING}


def _tensors(function: Callable[..., Any], args: Any, kwargs: Any) -> list[Tensor]:
    own = [*function.parameters(), *function.buffers()] if isinstance(function, nn.Module) else []
    return own + [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]


def _backend(
    graphs: list[GraphRecord],
    seen: Callable[[GraphRecord], None] | None,
    settings: dict[str, Any],
    options: Options,
) -> Callable[..., Any]:
    """A `torch.compile` backend: Inductor's front end, our pass on a copy, then the graph as it is."""
    from torch._inductor.compile_fx import compile_fx

    def inner_compile(gm: GraphModule, example_inputs: Sequence[Any], **kwargs: Any) -> Callable[..., Any]:
        kind = "backward" if kwargs.get("is_backward") else "forward"
        with inductor_config.patch(settings):  # a GPU's backward is compiled on a thread of its own
            graphs.append(_inspect(gm, example_inputs, kind, bool(kwargs.get("is_inference")), options))
        if seen is not None:
            seen(graphs[-1])

        def call(args: list[Any]) -> Any:
            return torch.fx.Interpreter(gm).boxed_run(args)

        call._boxed_call = True  # type: ignore[attr-defined]
        return call

    def backend(gm: GraphModule, example_inputs: Sequence[Any]) -> Any:
        return compile_fx(gm, example_inputs, inner_compile=inner_compile)

    return backend


def _inspect(
    gm: GraphModule, example_inputs: Sequence[Any], kind: str, is_inference: bool, options: Options
) -> GraphRecord:
    """What mixorder makes of a graph, which stays as it is."""
    from torch._inductor.fx_passes.post_grad import post_grad_passes
    from torch._inductor.virtualized import V

    ours = GraphModule(gm, copy.deepcopy(gm.graph))
    with V.set_fake_mode(detect_fake_mode(example_inputs)), collect() as records:
        post_grad_passes(ours, is_inference=is_inference)
        pipeline.run(ours.graph, options)
    return GraphRecord(kind, len(gm.graph.nodes), tuple(records))
