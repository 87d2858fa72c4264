"""Compile a graph by Inductor alone, in a pass of another compile, with the user's settings.

The other compile's modes, guards and handlers belong to its thread: the caller needs a thread of its own.
Inductor's cache of graphs is off: the process has one list of kernels to store with a graph, and the other
compile is filling it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch._inductor.config as config
from torch.fx import GraphModule
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from .config import NO_MIX_ORDER
from .tensors import FakeTensorMode

OFF: dict[str, Any] = {
    "mixorder": False,
    **NO_MIX_ORDER,
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
"""Settings that are off while Inductor compiles a graph by itself."""


def settings() -> list[tuple[str, str]]:
    """The plain settings that decide what Inductor makes of a graph, in order of their names."""
    with config.patch(_off()):
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
    with config.patch(_off()), torch.no_grad():
        compiled: Any = compile_fx_inner(module, fakes)
    return lambda tensors: compiled(list(tensors))  # it empties its list


def _off() -> dict[str, Any]:
    """Those of the settings that this torch has; mixorder's are not there before they are registered."""
    return {name: off for name, off in OFF.items() if name in config._config}
