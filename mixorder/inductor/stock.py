"""Compile a graph by Inductor without mixorder, in a pass of another compile, with the user's settings.

The other compile's modes, guards and handlers belong to its thread: the caller needs a thread of its own.
Inductor's cache of graphs is off: the process has one list of kernels to store with a graph, and the other
compile is filling it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from operator import attrgetter
from typing import Any

import torch
import torch._inductor.config as config
from torch.fx import GraphModule
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from . import mix_order
from .tensors import FakeTensorMode

OFF: dict[str, Any] = {
    "mixorder": False,
    # The graph has been through the user's passes.
    "post_grad_custom_pre_pass": None,
    "post_grad_custom_post_pass": None,
    # See above. Caches that are switched off get a folder of their own, and empty those in memory.
    "fx_graph_cache": False,
    "fx_graph_remote_cache": False,
    "force_disable_caches": False,
    # What calls the kernels; the caller captures them itself.
    "triton.cudagraphs": False,
    "cpp_wrapper": False,
}
"""Settings that are off while a graph is compiled as shipped."""

_replaced: ContextVar[Mapping[str, Any] | None] = ContextVar("mixorder_replaced", default=None)


@contextlib.contextmanager
def replaced(patches: Mapping[str, Any]) -> Iterator[None]:
    """Inductor's settings with these values. `compile_as_shipped` compiles with those before."""
    token = _replaced.set({name: attrgetter(name)(config) for name in patches})
    try:
        with config.patch(dict(patches)):
            yield
    finally:
        _replaced.reset(token)


def settings() -> list[tuple[str, str]]:
    """The plain settings that decide what Inductor makes of a graph, in order of their names."""
    with config.patch(_as_shipped()):
        values = config.save_config_portable()
    plain = (bool, int, float, str, type(None), list, tuple, dict)
    return sorted(
        (name, repr(value))
        for name, value in values.items()
        if isinstance(value, plain) and not name.startswith("mixorder") and " at 0x" not in repr(value)
    )


def compile_as_shipped(
    module: GraphModule,
    inputs: Sequence[tuple[torch.dtype, Sequence[int], Sequence[int]]],
    device: torch.device,
) -> Callable[[list[torch.Tensor]], Sequence[torch.Tensor]]:
    """Inductor's kernels for a functional graph after decomposition, as it makes them of what mixorder leaves
    alone, as a function of a list of tensors.

    `inputs`: dtypes, shapes and strides. Changes the module. Raises what Inductor raises. Needs a thread
    without modes.
    """
    from torch._inductor.compile_fx import compile_fx_inner

    with FakeTensorMode(shape_env=ShapeEnv()):
        fakes = [
            torch.empty_strided(shape, stride, dtype=dtype, device=device) for dtype, shape, stride in inputs
        ]
    with config.patch(_as_shipped()), torch.no_grad(), mix_order.kept_right(strict=False):
        compiled: Any = compile_fx_inner(module, fakes)
    return lambda tensors: compiled(list(tensors))  # it empties its list


def _as_shipped() -> dict[str, Any]:
    return {**(_replaced.get() or {}), **{name: off for name, off in OFF.items() if _is_there(name)}}


def _is_there(name: str) -> bool:
    """Whether this torch has a setting, and mixorder's are registered."""
    return name in config._config
