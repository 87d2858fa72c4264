"""Turn kernel text into a Triton kernel object that Inductor can launch and inline.

Writes the text to Inductor's code cache (a kernel needs a source file), imports it, and wraps it with its
launch configuration.
"""

from __future__ import annotations

import functools
import inspect
from pathlib import Path
from typing import Any

from ..inductor.kernels import load_module
from ..inductor.launch_options import compile_with
from .source import KernelSource


def load_function(module_text: str, name: str) -> Any:
    """The kernel as a `triton.JITFunction`, which has no launch configuration."""
    return getattr(load_module(module_text), name)


def load_kernel(source: KernelSource) -> Any:
    """The kernel as a `triton.runtime.Autotuner` over its one configuration, from which Inductor reads
    `num_warps` and `num_stages`. Equal sources give one object, unless the cache was emptied: Inductor looks
    for the line of a kernel in its file."""
    kernel = _loaded(source)
    if not Path(inspect.getfile(kernel.fn.fn)).exists():
        _loaded.cache_clear()
        kernel = _loaded(source)
    return kernel


@functools.lru_cache(maxsize=1024)
def _loaded(source: KernelSource) -> Any:
    import triton

    compile_with(source.name, source.waits, source.exact, source.registers)
    config = triton.Config(
        dict(source.config.constants),
        num_warps=source.config.num_warps,
        num_stages=source.config.num_stages,
    )
    return triton.autotune(configs=[config], key=[])(load_function(source.module_text, source.name))
