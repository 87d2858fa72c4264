"""How torch uses Triton: what kernels import, how their text is loaded, and for which devices."""

from __future__ import annotations

from types import ModuleType

import torch
from torch.utils._triton import has_triton

__all__ = ["has_triton"]

IMPORTS = """\
import triton
import triton.language as tl
from torch._inductor.runtime import triton_helpers
from torch._inductor.runtime.triton_helpers import libdevice, math as tl_math
"""
"""The first lines of a module of kernels; Inductor's own kernels have them, too."""


def load_module(text: str) -> ModuleType:
    """A module of this text, from a file in Inductor's code cache: Triton reads a kernel from its file."""
    from torch._inductor.codecache import PyCodeCache

    return PyCodeCache.load(text)


def pointer_type(dtype: torch.dtype) -> str:
    """Triton's name of a pointer to this dtype, such as `*fp32`."""
    from torch._inductor.utils import _type_of

    return _type_of(dtype)
