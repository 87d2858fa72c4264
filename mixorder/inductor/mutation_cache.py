"""Inductor's mutation analysis of a Triton kernel, once per kernel of mixorder's instead of twice per launch.

To find out which arguments a kernel writes, Inductor compiles it to Triton's IR for every launch:
some 17 ms each, and a model of 32 layers has 250 launches of 10 kernels. The result depends on the kernel's
text, its constants, and the dtypes of its arguments only. The analysis of other kernels is unchanged.

If Triton cannot compile a kernel, this analysis is only pessimistic, and the compile fails much later. So
mixorder's kernels are analysed before the graph is changed, and the result is cached for their launches.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Hashable, Mapping
from contextvars import ContextVar
from types import ModuleType
from typing import Any

import torch

from .versions import mutation_analysis
from .wrapping import Function, during, wrap

PREFIX = "triton_mixorder_"  # of the names of mixorder's kernels
_refusal: ContextVar[Exception | None] = ContextVar("mixorder_refusal", default=None)
"""Why the last kernel had no Triton IR; the analysis itself catches it."""
_is_own: ContextVar[bool] = ContextVar("mixorder_own_kernel", default=False)
"""Whether a kernel of mixorder's is analysed."""


def share(module: ModuleType) -> None:
    """Wrap the analysis of `torch._higher_order_ops.triton_kernel_wrap`. Idempotent."""
    wrap(module, "generate_ttir", _noting)
    wrap(module, "ttir_to_functions", _without_effects)
    wrap(module, mutation_analysis(module), functools.partial(_shared, {}))


def check(module: ModuleType, kernel: Any, kwargs: dict[str, Any]) -> None:
    """Raise `triton.compiler.errors.CompilationError` if Triton rejects a kernel with such arguments.

    Arguments are tensors by name; sizes may be symbolic. Other errors of the analysis are ignored: they do
    not keep the kernel from running. Needs a GPU, as the IR is compiled for its target.
    """
    from triton.compiler.errors import CompilationError

    share(module)
    _refusal.set(None)
    getattr(module, mutation_analysis(module))(kernel, kwargs, {})
    if isinstance(refusal := _refusal.get(), CompilationError):
        raise refusal


def _noting(original: Function, *args: Any, **kwargs: Any) -> Any:
    try:
        return original(*args, **kwargs)
    except Exception as error:
        _refusal.set(error)
        raise


def _without_effects(original: Function, *args: Any) -> Any:
    """Assembly that may not be moved is unknown to the analysis, which warns and takes every argument for
    written. Assembly of mixorder's kernels writes to nothing that their stores do not write to."""
    functions = original(*args)
    if _is_own.get():
        for block in (block for ops in functions.values() for block in ops.values()):
            block[:] = [dataclasses.replace(op, is_pure=True) for op in block]
    return functions


def _shared(
    known: dict[Hashable, Any],
    original: Function,
    kernel: Any,
    kwargs: dict[str, Any],
    *rest: Any,
    **named: Any,
) -> Any:
    """The analysis of a kernel, or what was `known` of one like it."""
    key = None if any(rest) or any(named.values()) else _key(kernel, kwargs)
    if key is None:
        return original(kernel, kwargs, *rest, **named)
    if key not in known:
        _refusal.set(None)
        with during(_is_own, True):
            result = original(kernel, kwargs, *rest, **named)
        if _refusal.get() is not None:
            return result
        known[key] = result
    return known[key]


def _key(kernel: Any, kwargs: Mapping[str, Any]) -> Hashable | None:
    """All inputs of the analysis; None for a kernel of others, or an argument of an unknown kind."""
    function = kernel
    if configs := getattr(kernel, "configs", None):  # an autotuner: its first configuration stands for all
        function, kwargs = kernel.fn, {**kwargs, **configs[0].kwargs}
    text = getattr(function, "src", None)
    if text is None or not function.__name__.startswith(PREFIX):
        return None
    kinds = {name: _kind(value) for name, value in kwargs.items()}
    return None if None in kinds.values() else (text, frozenset(kinds.items()))


def _kind(value: Any) -> Hashable | None:
    """The kind of an argument for the analysis: a tensor of some dtype, any symbolic size, or a number."""
    from torch._inductor.ir import TensorBox

    if isinstance(value, torch.Tensor):
        return value.dtype
    if isinstance(value, TensorBox):
        return value.get_dtype()
    if type(value) in (int, bool, float):
        return (type(value), repr(value))
    return "size" if isinstance(value, torch.SymInt) or hasattr(value, "free_symbols") else None
