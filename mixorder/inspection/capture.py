"""Run a model through torch's front end and mixorder's pass, and record what is fused and what is not.

Takes a module or function and its inputs, gives a `Report`. The graphs that run are AOTAutograd's, op by op.
No kernel of mixorder's or Inductor's is compiled or run, so that no GPU is needed.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule

from .. import pipeline
from ..errors import CannotExplain, MixorderError, in_a_line
from ..inductor import autocast, config, frontend, versions
from ..inductor.tensors import detect_fake_mode, tree_leaves
from ..options import Options
from ..plugin import prepare_interpreter
from ..region.padding import saved_strides
from ..report import collect
from ..schedule.device import device_info
from .backward import gradients, parameters_behind, roots_of
from .calls import Calls
from .explanation import Report
from .findings import GraphRecord
from .meta import faked, has_no_data, without_values
from .norms import norms_of
from .roofline import work_of
from .untouched import as_it_was, uncompiled


def explain(
    function: Callable[..., Any],
    options: Mapping[str, Any] | None = None,
    dynamic: bool | None = None,
    seen: Callable[[GraphRecord], None] | None = None,
) -> Callable[..., Report]:
    """See `mixorder.explain`. `seen` is called with the record of each graph as soon as there is one."""

    def explained(*args: Any, **kwargs: Any) -> Report:
        check_versions()
        run, settings = uncompiled(function), _checked(options)
        tensors = _tensors(run, args, kwargs)
        if no_data := has_no_data(tensors):
            run, (args, kwargs) = faked(run, (args, kwargs))
            tensors = _tensors(run, args, kwargs)
        device = next((t.device for t in tensors if t.is_cuda), torch.device("cpu"))
        watch = _Watch([], Calls(run), seen)
        torch.compiler.reset()
        try:
            with (
                as_it_was(run, tensors) as notes,
                _noted(watch, notes),
                config.patched(settings),
                config.without_autograd_cache(),
                detect_fake_mode(tensors) or contextlib.nullcontext(),
                without_values() if no_data else contextlib.nullcontext(),
                _as_on_gpu() if device.type == "cpu" else contextlib.nullcontext(),
            ):
                ours = dataclasses.replace(Options.current(), **_FIXED)
                compiled = torch.compile(run, backend=_backend(watch, settings, ours), dynamic=dynamic)
                notes += _backward(compiled(*args, **kwargs), watch)
                if any(n > 1 for n in watch.runs):
                    notes.append(
                        "some modules run the same compiled graph: its regions are listed once, "
                        "and the totals count them for each run"
                    )
        finally:
            torch.compiler.reset()
        graphs = tuple(dataclasses.replace(g, runs=n) for g, n in zip(watch.graphs, watch.runs, strict=True))
        notes += [f"not fused because of a bug: {str(e).splitlines()[0]}" for g in graphs for e in g.failures]
        return Report(
            graphs,
            norms_of(run, graphs, watch.calls.sizes),
            watch.breaks,
            device_info(device),
            on_gpu=device.type == "cuda",
            versions=versions.package_versions("mixorder", "torch", "triton"),
            notes=tuple(notes),
        )

    return _Explainer(function, explained)


@contextlib.contextmanager
def _as_on_gpu() -> Iterator[None]:
    with frontend.decomposed_as_on_gpu(), autocast.as_on_gpu():
        yield


@contextlib.contextmanager
def _noted(watch: _Watch, notes: list[str]) -> Iterator[None]:
    """Turn the error of a run whose graphs were analysed into a remark: the report is what was asked for."""
    try:
        yield
    except CannotExplain:
        raise
    except Exception as error:
        if not watch.graphs:
            raise
        notes.append(f"the run failed: {in_a_line(error)}. The report has what was compiled before")


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
    """What is recorded while the model runs. `runs`: how often each graph ran. `went_back`: whether a
    backward graph has run. `breaks`: how many graphs ended in a graph break."""

    graphs: list[GraphRecord]
    calls: Calls
    seen: Callable[[GraphRecord], None] | None
    runs: list[int] = dataclasses.field(default_factory=list)
    went_back: bool = False
    breaks: int = 0


def check_versions() -> None:
    """Raise `CannotExplain` for a torch that is not supported, and where there is no triton."""
    if why := versions.unsupported():
        raise CannotExplain(why)
    try:
        import triton  # noqa: F401
    except ImportError as error:
        raise CannotExplain(
            "triton is not installed, and kernels are written in it: "
            + versions.install_triton(versions.package_versions("torch")["torch"])
        ) from error
    if os.environ.get("TRITON_INTERPRET") == "1":
        prepare_interpreter()  # kernels are imported here once, and a later compile runs them


def _backward(result: Any, watch: _Watch) -> list[str]:
    """Run the backward of a model's outputs. Returns remarks for the report, such as that there is none."""
    ran_backward = watch.went_back
    roots = roots_of(result)
    try:
        if roots:
            gradients(roots, parameters_behind(roots))
    except RuntimeError as error:
        if not (ran_backward and "second time" in str(error)):
            raise
    if ran_backward:
        return ["the function runs its own backward, and that backward was analysed"]
    if roots:
        return []
    off = "gradients are off (no_grad or inference_mode)"
    on = "no result of the model needs a gradient (is it computed under no_grad, or detached?)"
    return [f"no backward ran: {on if torch.is_grad_enabled() else off}"]


_FIXED: dict[str, Any] = {"enabled": True, "autotune": False, "interpret": True}


def _checked(options: Mapping[str, Any] | None) -> dict[str, Any]:
    """The options as a patch for Inductor's config, with nothing tuned."""
    Options.current()  # registers ours
    given = {key.replace("-", "_"): value for key, value in (options or {}).items()}
    if unknown := sorted(name for name in given if not config.is_option(name)):
        raise ValueError(f"torch.compile has no option {', '.join(map(repr, unknown))}")
    return {**given, **config.TUNING_OFF}


def _tensors(function: Callable[..., Any], args: Any, kwargs: Any) -> list[Tensor]:
    module_tensors = [*function.parameters(), *function.buffers()] if isinstance(function, nn.Module) else []
    return module_tensors + [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]


def _backend(watch: _Watch, settings: dict[str, Any], options: Options) -> Callable[..., Any]:
    """A `torch.compile` backend: Inductor's front end, our pass on a copy, then the graph as it is."""

    def inner_compile(gm: GraphModule, example_inputs: Sequence[Any], **kwargs: Any) -> Callable[..., Any]:
        kind = "backward" if kwargs.get("is_backward") else "forward"
        with config.patched(settings):  # a GPU's backward is compiled on a thread of its own
            if kind == "forward":
                frontend.report_strides(saved_strides(gm.graph))
            watch.graphs.append(_inspect(gm, example_inputs, kind, bool(kwargs.get("is_inference")), options))
        if watch.seen is not None:
            watch.seen(watch.graphs[-1])
        place = len(watch.runs)
        watch.runs.append(0)

        def note() -> None:
            watch.runs[place] += 1
            watch.went_back |= kind == "backward"

        return frontend.run_by_node(gm, note)

    def backend(gm: GraphModule, example_inputs: Sequence[Any]) -> Any:
        reason = getattr(gm, "compile_subgraph_reason", None)
        watch.breaks += reason is not None and reason.graph_break
        watch.calls.add(gm)
        return frontend.compile_with(inner_compile, gm, example_inputs)

    return backend


def _inspect(
    gm: GraphModule, example_inputs: Sequence[Any], kind: str, is_inference: bool, options: Options
) -> GraphRecord:
    """What mixorder makes of a graph, which stays as it is."""
    ours = GraphModule(gm, copy.deepcopy(gm.graph))
    failures: list[MixorderError] = []
    with frontend.faking(example_inputs), collect(failures) as records:
        frontend.with_strides(ours, example_inputs)
        frontend.post_grad_passes(ours, is_inference=is_inference)
        pipeline.run(ours.graph, options)
    return GraphRecord(kind, len(gm.graph.nodes), tuple(records), tuple(failures), work=work_of(gm.graph))
