"""Why a compile goes on without mixorder: a `Decline` (expected) or a `MixorderError` (a bug).

Imports nothing of torch. Bad option values are neither: they are plain `ValueError`s.
"""

from __future__ import annotations

import functools
import logging
import warnings
from enum import Enum
from typing import Any


class DeclineReason(Enum):
    """Why a region was left to Inductor. Logs and counters use the value, which is a stable name. `remedy`
    says what to change; docs/reasons.md has the same text."""

    explanation: str
    remedy: str

    ROW_TOO_WIDE = (
        "row-too-wide",
        "A row is too wide for one program, and several programs cannot share it, or too many would have to.",
        "If the detail says what keeps programs from sharing a row (fp64, a gather, a weight per head), "
        "remove that. Otherwise normalise over fewer columns, such as per head or per group.",
    )
    TOO_SMALL = (
        "too-small",
        "The tensors are so small that a fused kernel would save next to nothing.",
        "Leave it: there is little to gain. To fuse it anyway, set `mixorder_min_numel` to a smaller number.",
    )
    SLOWER = (
        "slower",
        "mixorder's kernels save too little time, or none: as predicted, or as timed with "
        "`mixorder_autotune`.",
        "Leave it, or set `mixorder_autotune`, which times both versions. For experiments, "
        "`mixorder_min_numel` of 0 fuses it even if it is slower.",
    )
    CYCLE = (
        "cycle",
        "The fused kernel and a node outside the region would each need the other's result.",
        "Leave it: the order of the computation requires two kernels, unless the inputs suffice to "
        "compute what lies between the reductions.",
    )
    ORDER = (
        "order",
        "One kernel would change the order of collectives, random operators or other effects.",
        "In the model, compute everything that the region reads before you call a collective or random "
        "operator on the region's results.",
    )
    INPUT_MUTATED = (
        "input-mutated",
        "An input of the region is written between its reads.",
        "Replace the in-place update by an out-of-place one, or do it after the backward.",
    )
    UNSUPPORTED_OP = (
        "unsupported-op",
        "The region needs an operator that mixorder cannot write into a kernel.",
        "In the model, compute that operator before or after the operators between the two reductions.",
    )
    UNSUPPORTED_DTYPE = (
        "unsupported-dtype",
        "The kernels do not support a dtype of the region.",
        "Cast before the norm. Compute a scale's exponent in uint8, and view that as e8m0.",
    )
    DYNAMIC_SHAPE = (
        "dynamic-shape",
        "A size that must be known at compile time is symbolic.",
        "Call `torch._dynamo.mark_static` for every dim but batch and sequence, and pass contiguous tensors.",
    )
    LAYOUT = (
        "layout",
        "Most of the data would be read or written in another order than it has in memory, which is slow.",
        "Call `.contiguous()` where the transposed tensor is made, or use the channels-last format.",
    )
    TOO_MANY_LIVE_TILES = (
        "too-many-live-tiles",
        "A program would have to keep more values of a row at once than its registers hold.",
        "Compute a part of what lies between the reductions before the norm, or reduce over fewer columns.",
    )
    MEMORY = (
        "memory",
        "The fused kernel would raise the graph's peak memory.",
        "Leave it. To fuse it, checkpoint the activations.",
    )
    NUMERICS = (
        "numerics",
        "A setting of Inductor guarantees exact bits, which only Inductor's own kernels give.",
        "Leave it. To fuse it, switch off the setting that the detail names.",
    )
    MIXED_DEVICE = (
        "mixed-device",
        "The tensors of the region are not all on one device.",
        "Put them on one device.",
    )
    AXIS_CLASS = (
        "axis-class",
        "The two reductions read the same elements, but these cannot be arranged as rows and columns.",
        "Let both reductions read the same view of the tensor, and let the inner one run over its last dims.",
    )

    def __new__(cls, value: str, explanation: str, remedy: str) -> DeclineReason:
        member = object.__new__(cls)
        member._value_ = value
        member.explanation = explanation
        member.remedy = remedy
        return member


class Decline(Exception):
    """A region is left to Inductor: raised inside a stage, caught once, by the pipeline.

    `provenance`: a `region.provenance.Provenance` of the reductions, or None while it is unknown.
    """

    def __init__(self, reason: DeclineReason, detail: str, node_name: str | None = None) -> None:
        super().__init__(reason, detail, node_name)
        self.reason = reason
        self.detail = detail
        self.node_name = node_name
        self.provenance: Any = None

    def kept(self) -> Decline:
        """This decline, for longer than its handler: without the frames that it was raised through. They hold
        what all their callers hold, such as a step's gradients, until Python looks for cycles."""
        self.__traceback__ = self.__context__ = self.__cause__ = None
        return self

    def __str__(self) -> str:
        at = f" (at %{self.node_name})" if self.node_name else ""
        return f"{self.reason.value}: {self.detail}{at}"


class GainsNothing(Decline):
    """A strategy gains nothing for a program, whatever its size. This is not reported to users."""


NO_DOUBLE_BACKWARD = "does not currently support double backward"  # of torch's own message


def in_a_line(error: BaseException) -> str:
    """The type of an error and the first line of its message; a double backward is named in plain words."""
    if NO_DOUBLE_BACKWARD in str(error):
        return (
            "the gradient of a gradient (create_graph=True), which torch.compile does not support, with or "
            "without mixorder"
        )
    said = str(error).strip().splitlines()[:1]
    return ": ".join([type(error).__name__, *said])


@functools.cache
def say_once(message: str) -> None:
    """Log a warning, once in a process."""
    logging.getLogger("mixorder").warning(message)


@functools.cache
def warn_once(message: str) -> None:
    """Warn the user, once in a process."""
    warnings.warn(message, stacklevel=3)


class CannotExplain(RuntimeError):
    """`mixorder.explain` cannot analyse this model on this device; the message says what to do."""


class MixorderError(RuntimeError):
    """A bug in mixorder, raised where a stage ends; `__cause__` is the error that caused it."""

    def __init__(self, stage: str, region_id: str | None, cause: BaseException) -> None:
        super().__init__(stage, region_id, cause)
        self.stage = stage
        self.region_id = region_id
        self.__cause__ = cause

    def __str__(self) -> str:
        region = self.region_id or "the graph"
        return (
            f"mixorder failed in stage {self.stage!r} on {region}: "
            f"{type(self.__cause__).__name__}: {self.__cause__}\n"
            'This is a bug in mixorder. To switch it off: options={"mixorder": False}, or '
            "MIXORDER=0. To report it: run again with "
            "MIXORDER_DUMP=<directory> and attach that directory and this message."
        )
