"""Puts our pass beside the user's own passes, for the compiles that ask for it.

In: the module `torch._inductor.compile_fx`, right after it was loaded. Out: the same module with
two functions wrapped. Must not change anything for a compile whose options leave mixorder off.
"""

import contextlib
import functools
import importlib
import inspect
import logging
import os
import warnings
from collections.abc import Callable
from dataclasses import fields
from types import ModuleType
from typing import Any

import torch._inductor.config as config
import torch.fx
from torch._inductor.custom_graph_pass import CustomGraphPass

from mixorder.inductor import launch_options as launches
from mixorder.inductor import mutation_cache as analysis
from mixorder.inductor import versions
from mixorder.options import Options, config_key, source_hash

log = logging.getLogger(__name__)


class MixOrderPass(CustomGraphPass):
    """The post-grad pass: hands the graph to the pipeline. `fused`: the records of what it fused so far."""

    def __init__(self) -> None:
        self.fused: list[Any] = []

    def __call__(self, graph: torch.fx.Graph) -> None:
        import mixorder.pipeline as pipeline
        from mixorder.region.effects import may_be_reordered

        options = Options.current()
        fused = pipeline.run(graph, options)
        self.fused += fused
        if fused and may_be_reordered(graph):
            # H200, torch 2.11: of three effects beside a region, Inductor launched the last one first to save
            # memory, which it did not do without the region. The caller puts the setting back.
            config.reorder_for_peak_memory = False
        if fused and options.interpret and not _runs_kernels(graph):
            raise RuntimeError(_HOW_TO_INTERPRET)

    def uuid(self) -> tuple[str, tuple[Any, ...]]:
        return source_hash(), Options.current().as_tuple()


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


def wrap_compile_fx(module: ModuleType) -> None:
    """Wrap what compiles one graph, and the entry point, of `torch._inductor.compile_fx`. Idempotent.

    `TORCHINDUCTOR_FX_COMPILE_MODE=SUBPROCESS` calls the former in a worker, where the options arrive with the
    rest of the config; anything above it would be called in the parent, whose passes stay there.
    """
    _wrap(module, "_InProcessFxCompile.codegen_and_compile", _with_our_pass)
    _wrap(module, "compile_fx", _keep_options_for_backward)


def _wrap(module: ModuleType, path: str, wrap: Callable[..., Callable[..., Any]]) -> None:
    *owners, name = path.split(".")
    owner: Any = module
    for attribute in owners:
        owner = getattr(owner, attribute, None)
    original = getattr(owner, name, None)
    if original is None:
        log.warning("mixorder stays off: this torch has no %s.%s", module.__name__, path)
    elif not getattr(original, "_mixorder_wrapper", False):
        wrapper = functools.wraps(original)(wrap(original))
        wrapper._mixorder_wrapper = True  # type: ignore[attr-defined]
        setattr(owner, name, wrapper)


def _with_our_pass(original: Callable[..., Any]) -> Callable[..., Any]:
    """Compile one graph with our pass after the user's, and Inductor's own mix-order off; once more without
    it, where Inductor cannot compile what we made of the graph."""

    def codegen_and_compile(self: Any, gm: torch.fx.GraphModule, *args: Any, **kwargs: Any) -> Any:
        options = Options.current()
        if not options.enabled or _stays_off():
            return original(self, gm, *args, **kwargs)
        import mixorder.inductor.fallback as retry

        launches.define(importlib.import_module("torch._inductor.codegen.wrapper"))
        analysis.share(importlib.import_module("torch._higher_order_ops.triton_kernel_wrap"))
        ours, untouched = MixOrderPass(), retry.Untouched(gm)
        passes = versions.append_graph_pass(config.post_grad_custom_post_pass, ours)
        patches = {"post_grad_custom_post_pass": passes, **versions.builtin_mix_order_off()}
        patches["reorder_for_peak_memory"] = config.reorder_for_peak_memory  # the pass may change it
        try:
            with config.patch(patches):
                return original(self, gm, *args, **kwargs)
        except Exception as error:
            if options.strict or not ours.fused:
                raise
            retry.give_back(untouched, ours.fused, error)
        return original(self, gm, *args, **kwargs)

    return codegen_and_compile


def _keep_options_for_backward(original: Callable[..., Any]) -> Callable[..., Any]:
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
            options = Options.current()
        if config_patches and not options.enabled:
            _say_what_does_nothing(config_patches)
        caches: Any = contextlib.nullcontext()
        if inner_compile is default_inner and _to_interpret(options, example_inputs_):
            inner_compile, caches = _interpreted(options)
        # With config_patches, torch applies them and calls this function again without.
        if options.enabled and not config_patches:
            inner_compile = config.patch(options.as_config())(inner_compile)
        with caches:
            return original(model_, example_inputs_, inner_compile, config_patches, *args, **kwargs)

    return compile_fx


def _say_what_does_nothing(given: dict[str, Any]) -> None:
    """Options of ours, where mixorder is off and nobody has said that it is to be."""
    names = [config_key(f) for f in fields(Options) if config_key(f) in given]
    if names and "mixorder" not in given:
        _warn_once(f'{", ".join(names)} does nothing without "mixorder": True')


@functools.cache
def _warn_once(message: str) -> None:
    warnings.warn(message, stacklevel=2)


def _to_interpret(options: Options, inputs: Any) -> bool:
    """Whether the compile is one for Triton's interpreter: with its option, and nothing on a GPU."""
    on_gpu = any(isinstance(value, torch.Tensor) and value.is_cuda for value in inputs)
    return options.enabled and options.interpret and _interprets() and not on_gpu and not _stays_off()


def _interpreted(options: Options) -> tuple[Callable[..., Any], Any]:
    """What runs a graph node by node, with our kernels interpreted, and a context without AOTAutograd's
    cache, where there may be what Inductor itself has made of the graph."""
    import torch._functorch.config as functorch_config

    import mixorder.inductor.interpreter as interpret

    return interpret._inner_compile(options), functorch_config.patch(enable_autograd_cache=False)
