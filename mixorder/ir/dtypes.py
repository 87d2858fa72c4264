"""Sets of dtypes, and the dtype that a stored value is computed in."""

from __future__ import annotations

import torch

BOOL = torch.bool
FLOAT8 = frozenset(  # those that Triton can cast to
    {torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz}
)
HALVES = frozenset({torch.float16, torch.bfloat16})
IN_SLOTS = torch.float32  # what programs exchange: a slot has its bits
INTEGERS = frozenset({torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64})


def computed_in(stored: torch.dtype) -> torch.dtype:
    """The compute dtype of values that memory holds as `stored`."""
    return torch.float32 if stored in HALVES else stored


def added_up_in(dtype: torch.dtype) -> torch.dtype:
    """The widest dtype in which partials of `dtype` may be added up."""
    return torch.float64 if dtype == torch.float32 else dtype


def short_dtype(dtype: torch.dtype) -> str:
    """`torch.bfloat16` as `bf16`, in the spelling of FX's readable graphs."""
    return torch.fx.graph.dtype_abbrs[dtype]
