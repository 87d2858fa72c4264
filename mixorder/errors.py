"""Why a compile goes on without mixorder: a `Decline` (expected) or a `MixorderError` (a bug).

Imports nothing of torch. Bad option values are neither: they are plain `ValueError`s.
"""

from enum import Enum


class DeclineReason(Enum):
    """Why a region was left to Inductor. The value is the stable name used in logs and counters."""

    explanation: str

    ROW_TOO_WIDE = "row-too-wide", "A row does not fit any kernel strategy for this device."
    TOO_SMALL = "too-small", "The tensors are so small that a fused kernel would not pay."
    CYCLE = "cycle", "Fusing the region would make a node outside depend on its own result."
    INPUT_MUTATED = "input-mutated", "An input of the region is written between its reads."
    UNSUPPORTED_OP = "unsupported-op", "The region needs an operator that cannot be lowered."
    UNSUPPORTED_DTYPE = "unsupported-dtype", "The region has a dtype the kernels do not take."
    DYNAMIC_SHAPE = "dynamic-shape", "A size that must be known at compile time is symbolic."
    LAYOUT = "layout", "A tensor's strides would make the innermost loop uncoalesced."
    TOO_MANY_LIVE_TILES = (
        "too-many-live-tiles",
        "The region keeps more tiles alive at once than the registers hold.",
    )
    MIXED_DEVICE = "mixed-device", "The tensors of the region are not all on one device."
    AXIS_CLASS = (
        "axis-class",
        "The two sides share a tensor, but not its rows and columns.",
    )

    def __new__(cls, value: str, explanation: str) -> "DeclineReason":
        member = object.__new__(cls)
        member._value_ = value
        member.explanation = explanation
        return member


class Decline(Exception):
    """A region is left to Inductor: raised inside a stage, caught once, by the pipeline."""

    def __init__(self, reason: DeclineReason, detail: str, node_name: str | None = None) -> None:
        super().__init__(reason, detail, node_name)
        self.reason = reason
        self.detail = detail
        self.node_name = node_name

    def __str__(self) -> str:
        at = f" (at %{self.node_name})" if self.node_name else ""
        return f"{self.reason.value}: {self.detail}{at}"


class TooWide(Decline):
    """A region holds too much for any schedule: `words`, 32 bits each, per element. A smaller one may fit."""

    def __init__(
        self, words: int, detail: str, reason: DeclineReason = DeclineReason.TOO_MANY_LIVE_TILES
    ) -> None:
        super().__init__(reason, detail)
        self.words = words


class MixorderError(RuntimeError):
    """A bug in mixorder, raised at a stage border with the error that caused it as `__cause__`."""

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
            "TORCHINDUCTOR_MIX_ORDER_REDUCTION=0. To report it: run again with "
            "MIXORDER_DUMP=<directory> and attach that directory and this message."
        )
