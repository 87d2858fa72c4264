"""The functions that torch calls: they register the options, and connect the pass to the hooks.

Everything here is called while torch or Inductor is loading, or by a compile; imports wait until then.
"""

from __future__ import annotations

import dataclasses
import functools
import warnings
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

from .options import Options, register, source_hash

if TYPE_CHECKING:
    from torch.fx import Graph, Node

    from .inductor.hooks import MixOrderPass, Plugin
    from .record import RegionRecord


def register_options(module: ModuleType) -> None:
    """Add the options to `torch._inductor.config`."""
    register(module)


def wrap_compile_fx(module: ModuleType) -> None:
    """Put the pass into `torch._inductor.compile_fx`, for compiles that ask for it. Idempotent."""
    from .inductor import hooks

    hooks.wrap_compile_fx(module, plugin())


def fit_launches(module: ModuleType) -> None:
    """Let `torch._inductor.runtime.triton_heuristics` limit a kernel's registers, and compile one again that
    spills many or asks for too much shared memory."""
    from .inductor.launch_options import fit

    fit(module)


@functools.cache
def plugin() -> Plugin:
    """The functions that the hooks call."""
    from .inductor.hooks import Plugin

    return Plugin(Options.current, _identity, _mark, _run, _loses_order, _given_back, _interpreted_assembly)


def graph_pass() -> MixOrderPass:
    """The post-grad pass by itself; it reads the options when it is called."""
    from .inductor.hooks import MixOrderPass

    return MixOrderPass(plugin())


def compile_for_interpreter(options: Options) -> Callable[..., Any]:
    """A `torch.compile` backend: Inductor's graph (AOTAutograd, decompositions, post-grad passes with
    mixorder's in its usual place), run node by node on CPU tensors with interpreted kernels.

    Raises RuntimeError if `TRITON_INTERPRET` is not set.
    """
    from .inductor import interpreter
    from .inductor.config import patched

    ours = functools.partial(_run, settings=options) if options.enabled else None
    backend = interpreter.backend(ours, _interpreted_assembly)
    return patched(options.as_config())(backend)  # type: ignore[operator]


def prepare_interpreter() -> None:
    """Patch into Triton's interpreter what mixorder's kernels need and it lacks. Idempotent."""
    from .inductor import interpreter

    interpreter.prepare(_interpreted_assembly)


def _identity() -> tuple[str, tuple[Any, ...]]:
    from .tune.tuner import found_before

    options = Options.current()
    return source_hash(), (*dataclasses.astuple(options), *found_before(options))


def _mark(graph: Graph, settings: Options) -> bool:
    import mixorder.pipeline as pipeline

    return pipeline.mark_joint(graph, settings)


def _run(graph: Graph, settings: Options) -> list[RegionRecord]:
    import mixorder.pipeline as pipeline

    return pipeline.run(graph, settings)


def _loses_order(node: Node) -> bool:
    from .region.effects import loses_order

    return loses_order(node)


def _given_back(regions: list[RegionRecord], error: Exception) -> None:
    from .report import given_back

    given_back(regions)
    fused = "a region" if len(regions) == 1 else f"{len(regions)} regions"
    told = " ".join(f"{type(error).__name__}: {error}".split())[:300]
    warnings.warn(
        f"mixorder fused {fused} of a graph that Inductor could then not compile. The graph is compiled "
        f"without mixorder. {told}\nMIXORDER_STRICT=1 raises the error instead.",
        stacklevel=2,
    )


def _interpreted_assembly(text: str, args: list[Any]) -> list[Any] | None:
    import torch

    from .codegen import exchange, producers
    from .codegen.assembly import mark_of
    from .codegen.op_printer import FUNCTIONS

    if (function := FUNCTIONS.get(mark_of(text) or "")) is not None:
        return [function.meaning(*(torch.from_numpy(arg.copy()) for arg in args)).numpy()]
    return producers.interpreted(text, args) or exchange.interpreted(text, args)
