"""Inductor's scalar ops: their handlers, values and result dtypes."""

from __future__ import annotations

import contextlib
import functools
from typing import Any

import torch
from torch._inductor.dtype_propagation import DtypePropagationOpsHandler
from torch._inductor.ops_handler import DefaultHandler
from torch._inductor.utils import upcast_compute_type
from torch._inductor.virtualized import OpsValue, V, ops
from torch._prims_common import dtype_to_type

__all__ = ["DefaultHandler", "OpsValue", "dtype_to_type", "ops", "upcast_compute_type"]


def handling(handler: Any) -> contextlib.AbstractContextManager[Any]:
    """Every call of `ops` inside goes to this handler."""
    return V.set_ops_handler(handler)


def result_dtype(op: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.dtype | None:
    """The dtype of an op's result, from the `dtype` of its arguments; None if it gives no single value."""
    dtype = getattr(_dtype_rules(), op)(*args, **kwargs)
    return dtype if isinstance(dtype, torch.dtype) else None


@functools.cache
def _dtype_rules() -> DtypePropagationOpsHandler:
    return DtypePropagationOpsHandler()


def unwrapped(value: Any) -> Any:
    """A handler's own result of an op, without the wrapper that `ops` puts around it."""
    return value.value if isinstance(value, OpsValue) else value
