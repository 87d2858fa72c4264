"""Run a model through torch's front end and mixorder's pass, and keep what was fused and what was not.

Takes a module or function and its inputs, gives a `Report`. The graphs run as AOTAutograd made them, op
by op: no kernel of mixorder's or Inductor's is compiled or run, so that no GPU is needed.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
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

_NO_TUNING = {"max_autotune": False, "max_autotune_pointwise": False, "coordinate_descent_tuning": False}


def explain(
    function: Callable[..., Any],
    options: Mapping[str, Any] | None = None,
    dynamic: bool | None = None,
    seen: Callable[[GraphRecord], None] | None = None,
) -> Callable[..., Report]:
    """See `mixorder.explain`. `seen` is called with each graph as soon as it has been dealt with."""

    def explained(*args: Any, **kwargs: Any) -> Report:
        run, tensors = function, _tensors(function, args, kwargs)
        if has_no_data(tensors):
            run, (args, kwargs) = faked(function, (args, kwargs))
            tensors = _tensors(run, args, kwargs)
        before = sum(counters["graph_break"].values())
        torch._dynamo.reset()
        try:
            with _as_it_was(run, tensors), _settings(options), detect_fake_mode(tensors) or _nothing():
                graphs: list[GraphRecord] = []
                backend = _backend(graphs, seen, dataclasses.replace(Options.current(), **_FIXED))
                result = torch.compile(run, backend=backend, dynamic=dynamic)(*args, **kwargs)
                if roots := roots_of(result):
                    gradients(roots, parameters_behind(roots))
        finally:
            torch._dynamo.reset()
        device = next((t.device for t in tensors if t.is_cuda), torch.device("cpu"))
        return Report(
            tuple(graphs),
            norms_of(function, graphs),
            sum(counters["graph_break"].values()) - before,
            device_info(device),
            on_gpu=device.type == "cuda",
            versions=_compat.package_versions("mixorder", "torch", "triton"),
        )

    return explained


_FIXED: dict[str, Any] = {"enabled": True, "autotune": False, "interpret": True}


@contextlib.contextmanager
def _settings(options: Mapping[str, Any] | None) -> Iterator[None]:
    """Inductor's config with the options and no tuning, and no cache of AOTAutograd's: a hit runs no pass."""
    given = dict(options or {})
    Options.current()  # registers the entries
    unknown = sorted(key for key in given if key.replace("-", "_") not in inductor_config._config)
    if unknown:
        raise ValueError(f"unknown options: {', '.join(unknown)}; mixorder's begin with 'mixorder'")
    with (
        inductor_config.patch({**given, **_NO_TUNING}),
        functorch_config.patch(enable_autograd_cache=False),
    ):
        yield


@contextlib.contextmanager
def _as_it_was(function: Callable[..., Any], tensors: Sequence[Tensor]) -> Iterator[None]:
    """Put back the random state, and the buffers that a module's forward updates."""
    buffers = list(function.buffers()) if isinstance(function, nn.Module) else []
    if detect_fake_mode(tensors) is not None:
        yield
        return
    saved = [buffer.detach().clone() for buffer in buffers]
    devices = sorted({t.device.index or 0 for t in tensors if t.is_cuda})
    with torch.random.fork_rng(devices):
        try:
            yield
        finally:
            with torch.no_grad():
                for buffer, value in zip(buffers, saved, strict=True):
                    if not torch.equal(buffer, value):
                        buffer.copy_(value)


def _nothing() -> contextlib.AbstractContextManager[None]:
    return contextlib.nullcontext()


def _tensors(function: Callable[..., Any], args: Any, kwargs: Any) -> list[Tensor]:
    own = [*function.parameters(), *function.buffers()] if isinstance(function, nn.Module) else []
    return own + [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]


def _backend(
    graphs: list[GraphRecord], seen: Callable[[GraphRecord], None] | None, options: Options
) -> Callable[..., Any]:
    """A `torch.compile` backend: Inductor's front end, our pass on a copy, then the graph as it is."""
    from torch._inductor.compile_fx import compile_fx

    def inner_compile(gm: GraphModule, example_inputs: Sequence[Any], **kwargs: Any) -> Callable[..., Any]:
        kind = "backward" if kwargs.get("is_backward") else "forward"
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
