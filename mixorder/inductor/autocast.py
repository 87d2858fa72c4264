"""CUDA's autocast on a machine without a GPU, for tensors on the CPU."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
from torch.library import _scoped_library
from torch.utils._pytree import tree_map_only

# What CUDA's autocast computes in float32, and a CPU's in the dtype that it finds. torch has the list in C++
# only; https://docs.pytorch.org/docs/stable/amp.html
IN_FLOAT32 = (
    "acos", "asin", "cdist", "cosh", "cosine_embedding_loss", "cosine_similarity", "cross_entropy_loss",
    "cumprod", "cumsum", "dist", "erfinv", "exp", "expm1", "group_norm", "hinge_embedding_loss", "kl_div",
    "l1_loss", "layer_norm", "log", "log10", "log1p", "log2", "log_softmax", "margin_ranking_loss",
    "mse_loss", "native_layer_norm", "nll_loss", "nll_loss2d", "nll_loss_nd", "norm", "poisson_nll_loss",
    "pow", "prod", "reciprocal", "renorm", "rsqrt", "sinh", "smooth_l1_loss", "soft_margin_loss",
    "softmax", "softplus", "sum", "tan", "triplet_margin_loss",
)  # fmt: skip
_KEY = "AutocastCPU"


@contextlib.contextmanager
def as_on_gpu() -> Iterator[None]:
    """Inside, `torch.autocast("cuda")` casts tensors on the CPU as it casts those on a GPU."""
    original = torch.autocast.__init__

    @functools.wraps(original)
    def on_cpu(
        self: Any, device_type: str, dtype: torch.dtype | None = None, *args: Any, **kwargs: Any
    ) -> None:
        if device_type == "cuda":
            device_type, dtype = "cpu", dtype or torch.get_autocast_dtype("cuda")
        original(self, device_type, dtype, *args, **kwargs)

    with _scoped_library("aten", "IMPL") as library:
        for op in _missing():
            library.impl(op, _in_float32(op), _KEY)
        with mock.patch.object(torch.autocast, "__init__", on_cpu):
            yield


def _missing() -> Iterator[Any]:
    """The operators of the list that a CPU's autocast does not know; not those that write given tensors."""
    for name in IN_FLOAT32:
        packet = getattr(torch.ops.aten, name)
        for op in (getattr(packet, overload) for overload in packet.overloads()):
            known = torch._C._dispatch_has_kernel(op.name()) and not op._schema.is_mutable
            if known and not torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), _KEY):
                yield op


def _in_float32(op: Callable[..., Any]) -> Callable[..., Any]:
    """The kernel of an operator that casts tensors of half precision first."""
    below = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)

    def to_float32(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.float() if tensor.is_floating_point() and tensor.dtype.itemsize == 2 else tensor

    def kernel(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(below):
            args, kwargs = tree_map_only(torch.Tensor, to_float32, (args, kwargs))
            return op(*args, **kwargs)

    return kernel
