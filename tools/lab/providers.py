"""The providers that the benchmark compares: each takes a case and gives its forward.

Eager, `torch.compile` shipped, without its own fusion and tuned, mixorder and mixorder tuned, Liger, QuACK.
"""

import contextlib
import importlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .backward import EPS, Absent, Case, Forward

OURS = ("mixorder", "mixorder_tuned")


def _norm(case: Case) -> Forward:
    shape, eps = (case.cols,), EPS[case.norm]

    def plain(x: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
        return F.rms_norm(x, shape, w, eps) if case.norm == "rms" else F.layer_norm(x, shape, w, b, eps)

    # A clone, for what a graph returns as it came in is added up outside of it.
    return (lambda x, w, b: (plain(x, w, b), x.clone())) if case.residual else plain


def usable_options(options: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """`options` that this torch knows, and the names of those that it does not."""
    import torch._inductor.config as config

    known = config.get_config_copy()
    return {k: v for k, v in options.items() if k in known}, [k for k in options if k not in known]


def compiled(options: dict[str, Any]) -> Callable[[Case], Forward]:
    """Provider: `torch.compile` with those of `options` that exist."""

    def build(case: Case) -> Forward:
        return torch.compile(_norm(case), dynamic=False, options=usable_options(options)[0])

    return build


def mixorder(case: Case, **extra: Any) -> Forward:
    importlib.import_module("mixorder")  # registers its options
    options = {"mixorder": True, "mixorder_strict": True, **extra}
    return torch.compile(_norm(case), dynamic=False, options=options)


@contextlib.contextmanager
def _plain_norms_of_a_package(case: Case) -> Iterator[None]:
    """Around the imports of one that may be missing, and that knows no residual. Raises Absent."""
    if case.residual:
        raise Absent("takes no residual")
    try:
        yield
    except ImportError as error:
        raise Absent(repr(error)) from error


def liger(case: Case) -> Forward:
    """Out of place: a replayed in-place backward would read the dx of the replay before as dy."""
    with _plain_norms_of_a_package(case):
        from liger_kernel.ops.layer_norm import LigerLayerNormFunction
        from liger_kernel.ops.rms_norm import LigerRMSNormFunction
    eps = EPS[case.norm]
    if case.norm == "rms":
        return lambda x, w, b: LigerRMSNormFunction.apply(x, w, eps, 0.0, "llama", False)
    return lambda x, w, b: LigerLayerNormFunction.apply(x, w, b, eps)


def quack(case: Case) -> Forward:
    with _plain_norms_of_a_package(case):
        from quack.rmsnorm import layernorm_bwd, layernorm_fwd, rmsnorm
    eps = EPS[case.norm]
    if case.norm == "rms":
        return lambda x, w, b: rmsnorm(x, w, eps=eps)

    class QuackLayerNorm(torch.autograd.Function):
        """QuACK has both kernels, but no function; its forward takes float32 weights only."""

        @staticmethod
        def forward(ctx: Any, x: Tensor, w: Tensor, b: Tensor) -> Tensor:
            stats = {"return_rstd": True, "return_mean": True}
            y, rstd, mean = layernorm_fwd(x, w.float(), b.float(), eps=eps, **stats)
            ctx.save_for_backward(x, w, rstd, mean)
            return y

        @staticmethod
        def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, ...]:
            x, w, rstd, mean = ctx.saved_tensors
            return layernorm_bwd(x, w, dy, rstd, mean, has_bias=True)

    return lambda x, w, b: QuackLayerNorm.apply(x, w, b)


TUNED = {
    "triton.mix_order_reduction": True,
    "triton.mix_order_reduction_autotune_split_size": True,
    "triton.mix_order_reduction_allow_multi_stages": True,
    "triton.mix_order_reduction_non_strict_mode": True,
    "coordinate_descent_tuning": True,
}
OPTIONS: dict[str, dict[str, Any]] = {
    "stock": {},
    "stock_off": {"triton.mix_order_reduction": False},
    "stock_tuned": TUNED,
}
PROVIDERS: dict[str, Callable[[Case], Forward]] = {
    "eager": _norm,
    **{name: compiled(options) for name, options in OPTIONS.items()},
    "mixorder": mixorder,
    "mixorder_tuned": lambda case: mixorder(case, mixorder_autotune=True),
    "liger": liger,
    "quack": quack,
}
