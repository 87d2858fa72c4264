"""Fake tensors, trees of tensors, and strides."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence

import torch
import torch._inductor.config as config
from torch._dispatch.python import enable_python_dispatcher
from torch._guards import detect_fake_mode
from torch._prims_common import is_non_overlapping_and_dense_or_false as is_dense
from torch._prims_common import make_contiguous_strides_for
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    unset_fake_temporarily,
)
from torch.utils._pytree import tree_leaves, tree_map_only

__all__ = [
    "NEED_VALUES",
    "FakeTensor",
    "FakeTensorMode",
    "detect_fake_mode",
    "empty",
    "is_dense",
    "is_symbolic",
    "make_contiguous_strides_for",
    "padded_strides",
    "tracing",
    "tree_leaves",
    "tree_map_only",
    "unset_fake_temporarily",
]


@contextlib.contextmanager
def tracing(mode: FakeTensorMode) -> Iterator[None]:
    """Inside, operators give fake tensors, and ask the questions of symbolic sizes that they ask where
    Inductor traces a node that a pass has added."""
    with mode, enable_python_dispatcher():
        yield


def empty(
    mode: FakeTensorMode,
    shape: Sequence[int],
    stride: Sequence[int],
    dtype: torch.dtype,
    device: torch.device,
) -> torch.Tensor:
    """A fake tensor with memory of its own, as the operator gives it, in a tenth of the time where its sizes
    are numbers."""
    if all(isinstance(n, int) for n in (*shape, *stride)):
        with unset_fake_temporarily():
            return FakeTensor(mode, torch.empty_strided(shape, stride, dtype=dtype, device="meta"), device)
    with mode:
        return torch.empty_strided(shape, stride, dtype=dtype, device=device)


def is_symbolic(val: torch.Tensor) -> bool:
    """Whether a fake tensor has a size or stride that is no number."""
    return val._has_symbolic_sizes_strides


def padded_strides(val: torch.Tensor) -> tuple[int, ...] | None:
    """The strides that Inductor gives a contiguous tensor which it may pad: long ones are multiples of
    `padding_alignment_bytes`. None where it pads nothing: switched off, dynamic, short or even rows."""
    threshold = config.padding_stride_threshold
    if not is_symbolic(val) and 0 < math.prod(val.shape[1:]) <= threshold:
        return None
    if not config.comprehensive_padding or not all(isinstance(n, int) for n in val.shape):
        return None
    align = max(1, config.padding_alignment_bytes // val.dtype.itemsize)
    strides, stride, contiguous, same = list[int](), 1, 1, True
    for size in reversed(val.shape):
        if stride > threshold:
            stride = -(-stride // align) * align
        same = same and (size == 1 or stride == contiguous)
        strides.insert(0, stride)
        stride, contiguous = stride * size, contiguous * max(size, 1)
    return None if same else tuple(strides)


NEED_VALUES = (DataDependentOutputException, DynamicOutputShapeException)
"""The error of a fake tensor where code branches on its value."""
