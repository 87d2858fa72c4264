"""Run a model through torch's front end and mixorder's pass, and record what is fused and what is not.

Takes a module or function and its inputs, gives a `Report`. The graphs that run are AOTAutograd's, op by op.
No kernel of mixorder's or Inductor's is compiled or run, so that no GPU is needed.
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
from torch._guards import detect_fake_mode
from torch.fx import GraphModule
from torch.utils import _pytree as pytree

from .. import pipeline
from ..errors import CannotExplain
from ..inductor import versions
from ..inductor.spelling import misspelt
from ..options import Options
from ..report import collect
from ..schedule.device import device_info
from .backward import gradients, parameters_behind, roots_of
from .breaks import Breaks
from .calls import Calls
from .explanation import Report
from .findings import GraphRecord
from .meta import faked, has_no_data, without_values
from .norms import norms_of
from .untouched import as_it_was, uncompiled

_NO_TUNING = {"max_autotune": False, "max_autotune_pointwise": False, "coordinate_descent_tuning": False}


def explain(
    function: Callable[..., Any],
    options: Mapping[str, Any] | None = None,
    dynamic: bool | None = None,
    seen: Callable[[GraphRecord], None] | None = None,
) -> Callable[..., Report]:
    """See `mixorder.explain`. `seen` is called with the record of each graph as soon as there is one."""

    def explained(*args: Any, **kwargs: Any) -> Report:
        _check_versions()
        run, settings = uncompiled(function), _checked(options)
        tensors = _tensors(run, args, kwargs)
        if no_data := has_no_data(tensors):
            run, (args, kwargs) = faked(run, (args, kwargs))
            tensors = _tensors(run, args, kwargs)
        watch = _Watch([], Calls(run), Breaks(), seen)
        torch._dynamo.reset()
        try:
            with (
                as_it_was(run, tensors) as notes,
                inductor_config.patch(settings),
                functorch_config.patch(enable_autograd_cache=False),  # a hit runs no pass
                detect_fake_mode(tensors) or contextlib.nullcontext(),
                without_values() if no_data else contextlib.nullcontext(),
            ):
                ours = dataclasses.replace(Options.current(), **_FIXED)
                compiled = torch.compile(run, backend=_backend(watch, settings, ours), dynamic=dynamic)
                notes += _backward(compiled(*args, **kwargs), watch)
                if watch.calls.same:
                    notes.append("some graphs run for several modules; what is in them counts once")
        finally:
            torch._dynamo.reset()
        device = next((t.device for t in tensors if t.is_cuda), torch.device("cpu"))
        graphs, graph_breaks = tuple(watch.graphs), watch.breaks.count()
        return Report(
            graphs,
            norms_of(run, graphs, watch.calls, graph_breaks),
            graph_breaks,
            device_info(device),
            on_gpu=device.type == "cuda",
            versions=versions.package_versions("mixorder", "torch", "triton"),
            notes=tuple(notes),
        )

    return _Explainer(function, explained)


@dataclasses.dataclass(frozen=True)
class _Explainer:
    """The result of `explain(model)`: call it with the inputs."""

    function: Callable[..., Any]
    explained: Callable[..., Report]

    def __call__(self, *args: Any, **kwargs: Any) -> Report:
        return self.explained(*args, **kwargs)

    def __repr__(self) -> str:
        name = getattr(self.function, "__qualname__", type(self.function).__name__)
        return f"<mixorder.explain of {name}: call it with the inputs, explain(model)(*inputs)>"


@dataclasses.dataclass
class _Watch:
    """What is recorded while the model runs. `went_back`: whether a backward graph has run."""

    graphs: list[GraphRecord]
    calls: Calls
    breaks: Breaks
    seen: Callable[[GraphRecord], None] | None
    went_back: bool = False


def _check_versions() -> None:
    if why := versions.unsupported():
        raise CannotExplain(why)
    try:
        import triton  # noqa: F401
    except ImportError as error:
        raise CannotExplain(
            "triton is not installed, and kernels are written in it: "
            + versions.install_triton(versions.package_versions("torch")["torch"])
        ) from error


def _backward(result: Any, watch: _Watch) -> list[str]:
    """Run the backward of a model's outputs. Returns remarks for the report, such as that there is none."""
    own = watch.went_back
    roots = roots_of(result)
    try:
        if roots:
            gradients(roots, parameters_behind(roots))
    except RuntimeError as error:
        if not (own and "second time" in str(error)):
            raise
    if own:
        return ["it runs a backward itself, which is the one that was looked at"]
    if roots:
        return []
    off = "gradients are off (no_grad or inference_mode)"
    return [f"no backward: {'nothing that it gives needs a gradient' if torch.is_grad_enabled() else off}"]


_FIXED: dict[str, Any] = {"enabled": True, "autotune": False, "interpret": True}


def _checked(options: Mapping[str, Any] | None) -> dict[str, Any]:
    """The options as a patch for Inductor's config, with nothing tuned."""
    Options.current()  # registers ours
    given = {key.replace("-", "_"): value for key, value in (options or {}).items()}
    if unknown := sorted(given.keys() - inductor_config._config.keys()):
        said = " ".join(filter(None, map(misspelt, unknown))) or "Those of mixorder begin with 'mixorder'."
        raise ValueError(f"unknown options: {', '.join(unknown)}. {said}")
    return {**given, **_NO_TUNING}


def _tensors(function: Callable[..., Any], args: Any, kwargs: Any) -> list[Tensor]:
    own = [*function.parameters(), *function.buffers()] if isinstance(function, nn.Module) else []
    return own + [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]


def _backend(watch: _Watch, settings: dict[str, Any], options: Options) -> Callable[..., Any]:
    """A `torch.compile` backend: Inductor's front end, our pass on a copy, then the graph as it is."""
    from torch._inductor.compile_fx import compile_fx

    def inner_compile(gm: GraphModule, example_inputs: Sequence[Any], **kwargs: Any) -> Callable[..., Any]:
        kind = "backward" if kwargs.get("is_backward") else "forward"
        if kind == "backward":
            watch.calls.backward(gm)
        with inductor_config.patch(settings):  # a GPU's backward is compiled on a thread of its own
            watch.graphs.append(_inspect(gm, example_inputs, kind, bool(kwargs.get("is_inference")), options))
        if watch.seen is not None:
            watch.seen(watch.graphs[-1])

        def call(args: list[Any]) -> Any:
            watch.went_back |= kind == "backward"
            return torch.fx.Interpreter(gm).boxed_run(args)

        call._boxed_call = True  # type: ignore[attr-defined]
        return call

    def backend(gm: GraphModule, example_inputs: Sequence[Any]) -> Any:
        watch.breaks.add(gm)
        watch.calls.forward(gm)
        return watch.calls.watched(compile_fx(gm, example_inputs, inner_compile=inner_compile))

    return backend


def _inspect(
    gm: GraphModule, example_inputs: Sequence[Any], kind: str, is_inference: bool, options: Options
) -> GraphRecord:
    """The record of mixorder's pass over a copy of a graph."""
    from torch._inductor.fx_passes.post_grad import post_grad_passes
    from torch._inductor.virtualized import V

    ours = GraphModule(gm, copy.deepcopy(gm.graph))
    with V.set_fake_mode(detect_fake_mode(example_inputs)), collect() as records:
        post_grad_passes(ours, is_inference=is_inference)
        pipeline.run(ours.graph, options)
    return GraphRecord(kind, len(gm.graph.nodes), tuple(records))
