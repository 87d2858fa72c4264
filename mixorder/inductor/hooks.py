"""Puts our pass beside the user's own passes, for the compiles that ask for it.

In: the module `torch._inductor.compile_fx`, right after it was loaded. Out: the same module with
two functions wrapped. Must not change anything for a compile whose options leave mixorder off.
"""

import contextlib
import functools
import inspect
import logging
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Protocol

import torch._inductor.config as config
import torch.fx
from torch._inductor.custom_graph_pass import CustomGraphPass

from . import launch_options, mutation_cache, versions
from .config import without_autograd_cache
from .fallback import Untouched
from .wrapping import wrap

log = logging.getLogger(__name__)


class Settings(Protocol):
    """What the hooks ask of the options of a compile."""

    @property
    def enabled(self) -> bool: ...
    @property
    def strict(self) -> bool: ...
    @property
    def interpret(self) -> bool: ...
    def as_config(self) -> dict[str, Any]:
        """All options and their values, as a patch for Inductor's config."""


@dataclass(frozen=True)
class Plugin:
    """What the hooks call.

    `settings`: the options in force here and now. `identity`: what the pass's results depend on beside the
    graph; it can be pickled. `run`: changes a graph in place; gives what was fused, and whether Inductor may
    now launch effects in another order. `given_back`: told what was fused in a graph that is compiled without
    after all, and why. `assembly`: what a piece of inline assembly gives for NumPy arrays; None if unknown.
    """

    settings: Callable[[], Any]
    identity: Callable[[], Any]
    run: Callable[[torch.fx.Graph, Any], tuple[list[Any], bool]]
    given_back: Callable[[list[Any], Exception], None]
    assembly: Callable[[str, list[Any]], list[Any] | None]


class MixOrderPass(CustomGraphPass):
    """The post-grad pass: hands the graph to the plugin. `fused`: the records of what it fused so far."""

    def __init__(self, plugin: Plugin) -> None:
        self.plugin = plugin
        self.fused: list[Any] = []

    def __call__(self, graph: torch.fx.Graph) -> None:
        settings: Settings = self.plugin.settings()
        fused, may_lose_order = self.plugin.run(graph, settings)
        self.fused += fused
        if may_lose_order:
            # H200, torch 2.11: of three effects beside a region, Inductor launched the last one first to save
            # memory, which it did not do without the region. The caller puts the setting back.
            config.reorder_for_peak_memory = False
        if fused and settings.interpret and not _runs_kernels(graph):
            raise RuntimeError(_HOW_TO_INTERPRET)

    def uuid(self) -> Any:
        return self.plugin.identity()


@functools.cache
def _stays_off() -> bool:
    """Whether this torch is too old; says so once."""
    if why := versions.unsupported():
        warnings.warn(f"mixorder stays off: {why}", stacklevel=2)
    return bool(why)


_HOW_TO_INTERPRET = "mixorder_interpret needs TRITON_INTERPRET=1 in the environment before triton is imported"


def _runs_kernels(graph: torch.fx.Graph) -> bool:
    """Whether what Inductor makes of the graph can launch kernels. It knows nothing of the interpreter."""
    values = (node.meta.get("val") for node in graph.nodes)
    return any(isinstance(v, torch.Tensor) and v.is_cuda for v in values) or _has_driver()


def _has_driver() -> bool:
    import triton

    try:
        return triton.runtime.driver.active is not None and not _interprets()
    except RuntimeError:  # as triton says that there is none
        return False


def _interprets() -> bool:
    return os.environ.get("TRITON_INTERPRET") == "1"


def wrap_compile_fx(module: ModuleType, plugin: Plugin) -> None:
    """Wrap what compiles one graph, and the entry point, of `torch._inductor.compile_fx`. Idempotent.

    `TORCHINDUCTOR_FX_COMPILE_MODE=SUBPROCESS` calls the former in a worker, where the options arrive with the
    rest of the config; anything above it would be called in the parent, whose passes stay there.
    """
    for path, wrapper_of in (
        ("_InProcessFxCompile.codegen_and_compile", _with_our_pass),
        ("compile_fx", _keep_options_for_backward),
    ):
        if not wrap(module, path, functools.partial(wrapper_of, plugin)):
            log.warning("mixorder stays off: this torch has no %s.%s", module.__name__, path)


def _with_our_pass(plugin: Plugin, original: Callable[..., Any]) -> Callable[..., Any]:
    """Compile one graph with our pass after the user's, and Inductor's own mix-order off; once more without
    it, where Inductor cannot compile what we made of the graph."""

    def codegen_and_compile(self: Any, gm: torch.fx.GraphModule, *args: Any, **kwargs: Any) -> Any:
        settings: Settings = plugin.settings()
        if not settings.enabled or _stays_off():
            return original(self, gm, *args, **kwargs)
        from torch._higher_order_ops import triton_kernel_wrap
        from torch._inductor.codegen import wrapper

        launch_options.define(wrapper)
        mutation_cache.share(triton_kernel_wrap)
        ours, untouched = MixOrderPass(plugin), Untouched(gm)
        passes = versions.append_graph_pass(config.post_grad_custom_post_pass, ours)
        patches = {"post_grad_custom_post_pass": passes, **versions.builtin_mix_order_off()}
        patches["reorder_for_peak_memory"] = config.reorder_for_peak_memory  # the pass may change it
        try:
            with config.patch(patches):
                return original(self, gm, *args, **kwargs)
        except Exception as error:
            if settings.strict or not ours.fused:
                raise
            untouched.restore()
            plugin.given_back(ours.fused, error)
        return original(self, gm, *args, **kwargs)

    return codegen_and_compile


def _keep_options_for_backward(plugin: Plugin, original: Callable[..., Any]) -> Callable[..., Any]:
    """Compile the backward under the options that were in force for its forward.

    The backward is compiled at its first call, when a `config.patch` around the forward may be
    over. Torch carries the values given by `torch.compile(options=...)` over by decorating the
    inner compiler with them; this does the same for ours. Without it, AOTAutograd would also store
    that backward, compiled with mixorder off, under a key that says on.
    """
    default_inner = inspect.signature(original).parameters["inner_compile"].default

    def compile_fx(
        model_: Any,
        example_inputs_: Any,
        inner_compile: Callable[..., Any] = default_inner,
        config_patches: dict[str, Any] | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        with config.patch(config_patches or {}):
            settings: Settings = plugin.settings()
        if config_patches and not settings.enabled:
            _say_what_does_nothing(settings, config_patches)
        caches: Any = contextlib.nullcontext()
        if inner_compile is default_inner and _to_interpret(settings, example_inputs_):
            from .interpreter import inner_compile_of

            inner_compile = inner_compile_of(lambda graph: plugin.run(graph, settings), plugin.assembly)
            caches = without_autograd_cache()
        # With config_patches, torch applies them and calls this function again without.
        if settings.enabled and not config_patches:
            inner_compile = config.patch(settings.as_config())(inner_compile)
        with caches:
            return original(model_, example_inputs_, inner_compile, config_patches, *args, **kwargs)

    return compile_fx


def _say_what_does_nothing(settings: Settings, given: dict[str, Any]) -> None:
    """Options of ours, where mixorder is off and nobody has said that it is to be."""
    names = [name for name in settings.as_config() if name in given]
    if names and "mixorder" not in given:
        _warn_once(f'{", ".join(names)} does nothing without "mixorder": True')


@functools.cache
def _warn_once(message: str) -> None:
    warnings.warn(message, stacklevel=2)


def _to_interpret(settings: Settings, inputs: Any) -> bool:
    """Whether the compile is one for Triton's interpreter: with its option, and nothing on a GPU. Graphs are
    then run node by node, and AOTAutograd's cache may have what Inductor itself has made of one."""
    on_gpu = any(isinstance(value, torch.Tensor) and value.is_cuda for value in inputs)
    return settings.enabled and settings.interpret and _interprets() and not on_gpu and not _stays_off()
