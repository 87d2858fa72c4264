"""Adds mixorder's pass after the user's own passes, in compiles that turn it on.

In: the module `torch._inductor.compile_fx`, right after it was loaded. Out: the same module with
two functions wrapped. Must not change anything for a compile whose options leave mixorder off.
"""

import contextlib
import functools
import importlib
import inspect
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from types import ModuleType
from typing import Any, Protocol

import torch._inductor.config as config
import torch.fx
from torch._higher_order_ops import triton_kernel_wrap
from torch._inductor.custom_graph_pass import CustomGraphPass

from ..errors import say_once, warn_once
from . import (
    allocation,
    effect_order,
    graphs,
    joined,
    launch_options,
    mutation_cache,
    tiling,
    versions,
    viewed,
)
from .config import NO_MIX_ORDER, without_autograd_cache
from .fallback import Untouched
from .wrapping import Function, wrap

log = logging.getLogger(__name__)


class Settings(Protocol):
    """The part of a compile's options that the hooks read."""

    @property
    def enabled(self) -> bool: ...
    @property
    def strict(self) -> bool: ...
    @property
    def interpret(self) -> bool: ...
    def as_config(self, donated: tuple[Any, ...] = ()) -> dict[str, Any]:
        """All options and their values, and which of a graph's inputs are donated, as a patch for Inductor's
        config, which its cache keys cover."""


@dataclass(frozen=True)
class Plugin:
    """The functions that the hooks call.

    `settings`: returns the current options. `identity`: returns everything that the pass's results depend on
    besides the graph; it can be pickled. `mark`: marks in a joint graph what its forward and its backward
    have to agree on, and returns whether nodes have other names then. `run`: changes a graph in place;
    returns the records of fused regions. `loses_order`: whether a node has an effect that Inductor may
    run in another order than the graph's. `given_back`: gets the records and the error if the graph is
    compiled without its regions. `assembly`: the result of a piece of inline assembly on NumPy arrays;
    None if unknown.
    """

    settings: Callable[[], Any]
    identity: Callable[[], Any]
    mark: Callable[[torch.fx.Graph, Any], bool]
    run: Callable[[torch.fx.Graph, Any], list[Any]]
    loses_order: Callable[[torch.fx.Node], bool]
    given_back: Callable[[list[Any], Exception], None]
    assembly: Callable[[str, list[Any]], list[Any] | None]


class MixOrderPass(CustomGraphPass):
    """The post-grad pass: calls the plugin on the graph, under the settings that the user gave. `fused`: the
    records of the regions fused so far."""

    def __init__(self, plugin: Plugin) -> None:
        self.plugin = plugin
        self.fused: list[Any] = []
        self.given = {name: attrgetter(name)(config) for name in NO_MIX_ORDER}

    def __call__(self, graph: torch.fx.Graph) -> None:
        settings: Settings = self.plugin.settings()
        with config.patch(self.given):
            fused = self.plugin.run(graph, settings)
        self.fused += fused
        if fused and settings.interpret and not _runs_kernels(graph):
            raise RuntimeError(_HOW_TO_INTERPRET)

    def uuid(self) -> Any:
        return self.plugin.identity()


def _stays_off() -> bool:
    """Whether this torch is too old; warns once."""
    if why := versions.unsupported():
        warn_once(f"mixorder stays off: {why}")
    return bool(why)


_HOW_TO_INTERPRET = "mixorder_interpret needs TRITON_INTERPRET=1 in the environment before triton is imported"


def _runs_kernels(graph: torch.fx.Graph) -> bool:
    """Whether Inductor's code for the graph can launch kernels. Inductor does not support the interpreter."""
    values = (node.meta.get("val") for node in graph.nodes)
    return any(isinstance(v, torch.Tensor) and v.is_cuda for v in values) or _has_driver()


def _has_driver() -> bool:
    import triton

    try:
        return triton.runtime.driver.active is not None and not _interprets()
    except RuntimeError:  # triton's error if there is none
        return False


def _interprets() -> bool:
    return os.environ.get("TRITON_INTERPRET") == "1"


def wrap_compile_fx(module: ModuleType, plugin: Plugin) -> None:
    """Wrap the function that compiles one graph, the entry point, and the passes over a graph that is not yet
    divided into forward and backward, of `torch._inductor.compile_fx`. Idempotent.

    `TORCHINDUCTOR_FX_COMPILE_MODE=SUBPROCESS` calls the former in a worker, which gets the options with the
    rest of the config. Its callers run in the parent, whose passes do not reach the worker.
    """
    for path, wrapper in (
        ("_InProcessFxCompile.codegen_and_compile", _with_our_pass),
        ("compile_fx", _keep_options_for_backward),
        ("_recursive_joint_graph_passes", _with_marks),
    ):
        if not wrap(module, path, functools.partial(wrapper, plugin)):
            log.warning("mixorder stays off: this torch has no %s.%s", module.__name__, path)


@functools.cache
def _wrap_inductor(plugin: Plugin) -> None:
    """Wrap what Inductor has to do otherwise for a graph with our launches."""
    mutation_cache.share(triton_kernel_wrap)

    def is_on() -> bool:
        return bool(plugin.settings().enabled)

    for name, path, wrapper in (
        ("memory", "reorder_for_peak_memory", allocation.late),
        ("memory", "estimate_peak_memory", allocation.estimated),
        ("scheduler", "BaseSchedulerNode.decide_inplace_update", allocation.in_place),
        ("graph", "GraphLowering.run_node", functools.partial(_lowered, plugin)),
        ("graph", "GraphLowering.__init__", functools.partial(allocation.nothing_donated, is_on)),
        ("ir", "ConcatKernel.realize_into", joined.realized),
        ("ir", "ConcatKernel.can_realize_into_without_copy", joined.needs_no_copy),
        ("tiling_utils", "extract_normalized_read_writes", tiling.by_names_in_loops),
        ("codegen.wrapper", "PythonWrapperCodegen.define_kernel", launch_options.defined),
    ):
        wrap(importlib.import_module(f"torch._inductor.{name}"), path, wrapper)


def _lowered(plugin: Plugin, original: Function, self: Any, node: torch.fx.Node) -> Any:
    """Wraps Inductor's method that lowers a node."""
    ordered = functools.partial(effect_order.ordered, plugin.loses_order, original)
    return joined.joined(functools.partial(viewed.settled, ordered), self, node)


def _with_our_pass(
    plugin: Plugin, original: Function, self: Any, gm: torch.fx.GraphModule, *args: Any, **kwargs: Any
) -> Any:
    """Compile one graph with mixorder's pass after the user's, without Inductor's own mix-order reduction. If
    Inductor cannot compile the rewritten graph, compile the original one."""
    settings: Settings = plugin.settings()
    if not settings.enabled or _stays_off():
        return original(self, gm, *args, **kwargs)
    _wrap_inductor(plugin)
    ours, untouched = MixOrderPass(plugin), Untouched(gm)
    passes = versions.append_graph_pass(config.post_grad_custom_post_pass, ours)
    try:
        with config.patch({"post_grad_custom_post_pass": passes, **NO_MIX_ORDER}):
            return original(self, gm, *args, **kwargs)
    except Exception as error:
        if settings.strict or not ours.fused:
            raise
        untouched.restore()
        plugin.given_back(ours.fused, error)
    with config.patch(NO_MIX_ORDER):
        return original(self, gm, *args, **kwargs)


def _with_marks(
    plugin: Plugin, original: Function, gm: torch.fx.GraphModule, *args: Any, **kwargs: Any
) -> torch.fx.GraphModule:
    """Mark what forward and backward have to agree on. Only here are both in one graph: a mark on a node is
    copied into each, and the partitioner follows marks of what is to be saved."""
    result: torch.fx.GraphModule = original(gm, *args, **kwargs)
    settings: Settings = plugin.settings()
    if settings.enabled and not _stays_off() and plugin.mark(result.graph, settings):
        result.recompile()
    return result


def _keep_options_for_backward(
    plugin: Plugin,
    original: Function,
    model_: Any,
    example_inputs_: Any,
    inner_compile: Function | None = None,
    config_patches: dict[str, Any] | None = None,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Compile the backward with the options of its forward.

    The backward is compiled at its first call, when a `config.patch` around the forward may have ended.
    Torch passes on the values of `torch.compile(options=...)` by decorating the inner compiler with them;
    this does the same for mixorder's options. Without it, AOTAutograd would also store a backward that is
    compiled with mixorder off under a key that says on.
    """
    default_inner = inspect.signature(original).parameters["inner_compile"].default
    inner_compile = inner_compile or default_inner
    with config.patch(config_patches or {}):
        settings: Settings = plugin.settings()
    if config_patches and not settings.enabled:
        _say_what_does_nothing(settings, config_patches)
    caches: Any = contextlib.nullcontext()
    if inner_compile is default_inner and _to_interpret(settings, example_inputs_):
        from .interpreter import inner_compile_of

        inner_compile = inner_compile_of(lambda graph: plugin.run(graph, settings), plugin.assembly)
        caches = without_autograd_cache()
    # Torch applies config_patches, and calls this function again without them.
    if settings.enabled and not config_patches:
        inner_compile = _with_settings(settings, inner_compile)
    with caches:
        return original(model_, example_inputs_, inner_compile, config_patches, *args, **kwargs)


def _with_settings(settings: Settings, inner_compile: Function) -> Function:
    """Compile each graph with a compile's options, and under a key that says which inputs are donated."""

    @functools.wraps(inner_compile)
    def compile_graph(gm: torch.fx.GraphModule, *args: Any, **kwargs: Any) -> Any:
        with config.patch(settings.as_config(graphs.mark_donated(gm.graph, **kwargs))):
            return inner_compile(gm, *args, **kwargs)

    return compile_graph


def _say_what_does_nothing(settings: Settings, given: dict[str, Any]) -> None:
    """Warn of mixorder's options where mixorder is off without being switched off explicitly."""
    names = [name for name in settings.as_config() if name in given]
    if given.get("mixorder"):
        say_once('MIXORDER=0 keeps mixorder off, also where options have "mixorder": True')
    if names and "mixorder" not in given:
        warn_once(f'{", ".join(names)} does nothing without "mixorder": True')


def _to_interpret(settings: Settings, inputs: Any) -> bool:
    """Whether the compile is for Triton's interpreter: the option is set, and no input is on a GPU. Graphs
    are then run node by node. AOTAutograd's cache is off then: it may hold Inductor's code for a graph."""
    on_gpu = any(isinstance(value, torch.Tensor) and value.is_cuda for value in inputs)
    return settings.enabled and settings.interpret and _interprets() and not on_gpu and not _stays_off()
