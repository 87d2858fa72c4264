"""Inductor's analysis of a Triton kernel, once per kernel of ours instead of twice per launch.

To learn which arguments a kernel writes, Inductor compiles it to Triton's IR for every launch that it meets:
some 17 ms each, and a model of 32 layers has 250 launches of 10 kernels. The answer depends on the kernel's
text, its constants, and the dtypes of its arguments only. Other people's kernels are analysed as ever.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Mapping
from types import ModuleType
from typing import Any

import torch

PREFIX = "triton_mixorder_"  # what the names of our kernels begin with
_MAX_KERNELS = 1024


def share(module: ModuleType) -> None:
    """Wrap the analysis of `torch._higher_order_ops.triton_kernel_wrap`. Idempotent."""
    for name in ("identify_accessed_tensors", "identify_mutated_tensors"):  # 2.13, before
        original = getattr(module, name, None)
        if original is not None and not getattr(original, "_mixorder_wrapper", False):
            setattr(module, name, _shared(original))


def _shared(original: Callable[..., Any]) -> Callable[..., Any]:
    known: dict[Hashable, Any] = {}

    @functools.wraps(original)
    def analyse(kernel: Any, kwargs: dict[str, Any], *rest: Any, **named: Any) -> Any:
        key = None if any(rest) or any(named.values()) else _key(kernel, kwargs)
        if key is None:
            return original(kernel, kwargs, *rest, **named)
        if key not in known:
            if len(known) >= _MAX_KERNELS:
                known.clear()
            known[key] = original(kernel, kwargs, *rest, **named)
        return known[key]

    analyse._mixorder_wrapper = True  # type: ignore[attr-defined]
    return analyse


def _key(kernel: Any, kwargs: Mapping[str, Any]) -> Hashable | None:
    """All that the analysis looks at; None for a kernel that is not ours, or an argument of another kind."""
    function = kernel
    if configs := getattr(kernel, "configs", None):  # an autotuner: its first configuration stands for all
        function, kwargs = kernel.fn, {**kwargs, **configs[0].kwargs}
    text = getattr(function, "src", None)
    if text is None or not function.__name__.startswith(PREFIX):
        return None
    kinds = {name: _kind(value) for name, value in kwargs.items()}
    return None if None in kinds.values() else (text, frozenset(kinds.items()))


def _kind(value: Any) -> Hashable | None:
    """What the analysis makes of an argument: a tensor of some dtype, any symbolic size, or a number."""
    from torch._inductor.ir import TensorBox

    if isinstance(value, torch.Tensor):
        return value.dtype
    if isinstance(value, TensorBox):
        return value.get_dtype()
    if type(value) in (int, bool, float):
        return (type(value), repr(value))
    return "size" if isinstance(value, torch.SymInt) or hasattr(value, "free_symbols") else None
