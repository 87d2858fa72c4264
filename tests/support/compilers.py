"""How tests and tools compile: by Inductor on a GPU, in Triton's interpreter without one."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.fx import GraphModule

Look = Callable[[GraphModule, Sequence[Any]], None]

# A hit in the cache of graphs would run no pass. It is an option because options apply to all threads.
STOCK: dict[str, Any] = {"mixorder": False, "fx_graph_cache": False}
OURS: dict[str, Any] = {"mixorder": True, "mixorder_strict": True, "fx_graph_cache": False}
STRICT: dict[str, Any] = OURS | {"mixorder_min_numel": 0}


def how(
    device: str, mixorder: bool, min_numel: int = 0, split_size: int = 0, **options: Any
) -> dict[str, Any]:
    """Arguments of `torch.compile`: stock, or mixorder, strict and of any size. `device` is "cuda", or
    anything else for the interpreter, where stock is the same graph without mixorder, node by node.

    `options` are further options of Inductor, which the interpreter ignores.
    """
    if device == "cuda":
        importlib.import_module("mixorder")  # registers its options
        ours = {"strict": True, "min_numel": min_numel, "split_size": split_size} if mixorder else {}
        named = {"mixorder": mixorder, **{f"mixorder_{name}": value for name, value in ours.items()}}
        return {"options": {**named, "fx_graph_cache": False, **options}}  # a hit would run no pass
    from mixorder.options import Options
    from mixorder.plugin import compile_for_interpreter

    chosen = Options(mixorder, strict=True, interpret=True, min_numel=min_numel, split_size=split_size)
    return {"backend": compile_for_interpreter(chosen)}


def by_node(gm: GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
    """A backend: the graph of which Inductor makes kernels, run node by node."""
    from mixorder.inductor import frontend

    def inner_compile(gm: GraphModule, inputs: Sequence[Any], **given: Any) -> Callable[..., Any]:
        with frontend.faking(inputs):
            frontend.with_strides(gm, inputs)
            frontend.with_graphs_inside(gm, is_inference=bool(given.get("is_inference", False)))
        gm.recompile()
        return frontend.run_by_node(gm)

    return frontend.compile_with(inner_compile, gm, inputs)  # type: ignore[no-any-return]


def inductor(options: dict[str, Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Compiles functions with options of Inductor, each for the sizes of its inputs."""

    def compile(function: Callable[..., Any]) -> Callable[..., Any]:
        torch._dynamo.reset()
        return torch.compile(function, options=options, dynamic=False, fullgraph=True)

    return compile


def as_shipped(mixorder: bool, tuned: bool = False) -> dict[str, Any]:
    """Inductor's options on a GPU as users have them, stock or mixorder; but a graph is always compiled.
    `tuned`: mixorder times schedules, which runs on the GPU."""
    importlib.import_module("mixorder")  # registers its options
    ours = {"mixorder_autotune": True} if mixorder and tuned else {}
    return {"mixorder": mixorder, "fx_graph_cache": False, **ours}


def ahead_of_time(
    device: str, mixorder: bool, tuned: bool = False
) -> Callable[[GraphModule, Sequence[Any]], Callable[..., Any]]:
    """Compiles a graph of aten operators for the sizes of its inputs, which may be fake, and runs nothing but
    what is `tuned`.

    On "cuda" with the options of users, else as `how` does."""
    if device != "cuda":
        return how(device, mixorder)["backend"]
    options = as_shipped(mixorder, tuned)
    return lambda gm, inputs: torch._inductor.compile(gm, list(inputs), options)


@contextmanager
def multiprocessors(count: int) -> Iterator[None]:
    """Make mixorder plan for a GPU with `count` multiprocessors: small tensors then run as large ones do."""
    from mixorder.planning import planning_with
    from mixorder.schedule.device import MEASURED as H200

    with planning_with(device=dataclasses.replace(H200, num_sm=count)):
        yield


def looking(look: Look) -> Callable[..., Any]:
    """A backend that calls `look` with each graph and its inputs before Inductor's post-grad passes, and
    then runs the graph node by node."""
    from torch._guards import detect_fake_mode
    from torch._inductor.compile_fx import compile_fx
    from torch._inductor.virtualized import V

    def inner_compile(gm: GraphModule, inputs: Sequence[Any], **_: Any) -> Callable[..., Any]:
        with V.set_fake_mode(detect_fake_mode(inputs)):
            look(gm, inputs)
        gm.recompile()

        def call(args: list[Any]) -> Any:
            return torch.fx.Interpreter(gm).boxed_run(args)

        call._boxed_call = True  # type: ignore[attr-defined]
        return call

    return lambda gm, inputs: compile_fx(gm, inputs, inner_compile=inner_compile)
