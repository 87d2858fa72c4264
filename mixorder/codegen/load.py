"""Turn kernel text into a Triton kernel object that Inductor can launch and inline.

Writes the text to Inductor's code cache (a kernel needs a source file), imports it, and wraps it with its
launch configurations.
"""

from __future__ import annotations

import functools
from typing import Any

from .source import KernelSource


@functools.lru_cache(maxsize=1024)
def load_kernel(source: KernelSource) -> Any:
    """The kernel as a `triton.runtime.Autotuner` over its configurations; equal sources give one object."""
    import triton
    from torch._inductor.codecache import PyCodeCache

    module = PyCodeCache.load(source.module_text)
    configs = [
        triton.Config(dict(c.constants), num_warps=c.num_warps, num_stages=c.num_stages)
        for c in source.configs
    ]
    return triton.autotune(configs=configs, key=[])(getattr(module, source.name))
