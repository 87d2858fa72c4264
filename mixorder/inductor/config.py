"""Inductor's settings and caches: functions that read them, and patches for one compile."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch._dynamo.config as dynamo_config
import torch._functorch.config as functorch_config
import torch._inductor.config as inductor_config
from torch._inductor.runtime.cache_dir_utils import cache_dir, triton_cache_dir
from torch._inductor.utils import fresh_cache

from . import versions

__all__ = ["cache_dir", "fresh_cache", "inductor_config", "triton_cache_dir"]

# Inductor's own mix-order reduction, which is wrong in some cases (docs/lab/robustness.md), is off for what
# mixorder leaves alone. Torch reads the setting where it lowers and schedules a graph.
NO_MIX_ORDER = {"triton.mix_order_reduction": False}
TUNING_OFF = {"max_autotune": False, "max_autotune_pointwise": False, "coordinate_descent_tuning": False}


def emulates_precision_casts() -> bool:
    """Whether Inductor rounds every result as eager does."""
    return bool(inductor_config.emulate_precision_casts)


def uses_fast_math() -> bool:
    """Whether Inductor compiles functions to less exact and faster ones."""
    return bool(inductor_config.use_fast_math)


def realize_threshold(what: str) -> int:
    """The number above which Inductor stores what a loop computes: of "reads" where several nodes use the
    value, of "acc_reads" or operations ("opcount") in any case."""
    return versions.realize_threshold(inductor_config, what)


def tunes() -> bool:
    """Whether Inductor times kernels in this compile."""
    return any(getattr(inductor_config, name) for name in TUNING_OFF)


def fuses_both_orders(rows: int, cols: int) -> bool:
    """Whether Inductor alone would use its own mix-order reduction for rows so long. Before torch 2.15, there
    have to be two for each column."""
    on = inductor_config.triton.mix_order_reduction and not inductor_config.cpp_wrapper
    return bool(on) and (rows >= 2 * cols or versions.mixes_wide_rows())


def wants_deterministic_results() -> bool:
    """Whether the user asks torch or Inductor for results that are the same on every run and machine."""
    return torch.are_deterministic_algorithms_enabled() or bool(inductor_config.deterministic)


def promises_bits() -> str:
    """The setting, if any, by which the user asks for bits that only Inductor's own kernels have."""
    return versions.promises_bits(inductor_config)


def retraces_backward() -> bool:
    """Whether torch.compile uses compiled autograd, which traces backwards again, without marks of nodes."""
    return bool(dynamo_config.compiled_autograd)


def winners_folder() -> Path | None:
    """The folder of the winners of tuning; None where Inductor's caches are switched off."""
    return None if inductor_config.force_disable_caches else Path(cache_dir()) / "mixorder"


def is_option(name: str) -> bool:
    """Whether `torch.compile` takes an option of this name."""
    return name in inductor_config._config


def patched(settings: Mapping[str, Any]) -> contextlib.AbstractContextManager[Any]:
    """Inductor's settings with these values, on this thread."""
    return inductor_config.patch(dict(settings))


def without_autograd_cache() -> contextlib.AbstractContextManager[Any]:
    """AOTAutograd's cache off: after a cache hit nothing is compiled, and no pass runs."""
    return functorch_config.patch(enable_autograd_cache=False)
