"""Fake tensors, trees of tensors, and strides."""

from __future__ import annotations

from torch._guards import detect_fake_mode
from torch._prims_common import make_contiguous_strides_for
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
)
from torch.utils._pytree import tree_leaves, tree_map_only

__all__ = [
    "NEED_VALUES",
    "FakeTensorMode",
    "detect_fake_mode",
    "make_contiguous_strides_for",
    "tree_leaves",
    "tree_map_only",
]

NEED_VALUES = (DataDependentOutputException, DynamicOutputShapeException)
"""The error of a fake tensor where code branches on its value."""
