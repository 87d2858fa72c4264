"""The record of one fused region as plain data: what logs, the trace artifact and `mixorder.explain` show.

Taken before the rewrite, which erases the region's nodes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from torch.fx import Node

from .codegen.source import KernelSource
from .errors import Decline
from .ir.dtypes import short_dtype
from .ir.program import LoopProgram
from .region.axes import Space
from .region.nodes import fake, is_mean, is_moment, is_relative_sum, is_variance, size_of, stated_by
from .region.provenance import Provenance
from .region.sizes import Size
from .schedule.cost import Traffic
from .schedule.plan import Plan
from .schedule.predicted import Expected
from .tune.search import Tuning


@dataclasses.dataclass(frozen=True)
class TensorRecord:
    """A tensor that a region reads or writes: the node's name, its dtype as `bf16`, its sizes."""

    name: str
    dtype: str
    shape: tuple[int | str, ...]

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


@dataclasses.dataclass(frozen=True)
class Extent:
    """The axes of a region's reductions as text, and its numbers of rows and columns; text if symbolic."""

    axes: str
    rows: int | str
    cols: int | str

    def __str__(self) -> str:
        return self.axes


@dataclasses.dataclass(frozen=True)
class Reduction:
    """A reduction: the node's name, and what it computes, such as `sum`."""

    name: str
    op: str


@dataclasses.dataclass(frozen=True)
class Planning:
    """What the pass found on the way to a region's kernels.

    `lowered`: the loop nests before any rewrite. `tuning`: the gain from timing, if schedules were timed.
    `peak`: estimated bytes of tensors at the graph's peak, without and with the region. `stage_ms`:
    milliseconds that the pass spent on the region, by stage.
    """

    lowered: LoopProgram = dataclasses.field(compare=False, repr=False)
    tuning: Tuning | None = None
    peak: tuple[int, int] | None = None
    stage_ms: tuple[tuple[str, float], ...] = dataclasses.field(default=(), compare=False, repr=False)

    @property
    def pass_ms(self) -> float:
        """Milliseconds that the pass spent on the region, from the search to the rewrite."""
        return sum(ms for _, ms in self.stage_ms)


@dataclasses.dataclass(frozen=True)
class RegionRecord:
    """One fused region, as plain data.

    `inner`, `outer`: the reductions along rows and over them. `traffic`: in bytes. `loops`: the nests that
    the kernels run. A comparison of two records ignores loops and times.
    """

    name: str
    space: Extent
    inner: tuple[Reduction, ...]
    outer: tuple[Reduction, ...]
    strategy: str
    schedule: Plan
    kernels: tuple[KernelSource, ...]
    traffic: Traffic
    expected: Expected
    provenance: Provenance
    inputs: tuple[TensorRecord, ...]
    outputs: tuple[TensorRecord, ...]
    loops: LoopProgram = dataclasses.field(compare=False, repr=False)
    planning: Planning


def extent_of(space: Space) -> Extent:
    """The extent of a region's elements."""
    return Extent(str(space), _number(space.rows), _number(space.cols))


def reductions_of(nodes: Iterable[Node]) -> tuple[Reduction, ...]:
    """What nodes that reduce compute."""
    return tuple(Reduction(n.name, _op(n)) for n in nodes)


def _number(size: Size) -> int | str:
    return size if isinstance(size, int) else str(size)


def as_dict(record: RegionRecord | Decline) -> dict[str, Any]:
    """JSON-compatible, with the kernels' text and loops. Units: bytes, microseconds, milliseconds."""
    if isinstance(record, Decline):
        return {
            "reason": record.reason.value,
            "detail": record.detail,
            "node": record.node_name,
            "explanation": record.reason.explanation,
            "remedy": record.reason.remedy,
            "provenance": _plain(record.provenance),
        }
    plain: dict[str, Any] = _plain(record)
    plain["traffic"]["total"] = record.traffic.total
    plain["expected"]["share"] = record.expected.share
    return plain


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, LoopProgram):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value if isinstance(value, int | float | str | None) else str(value)


def tensor_of(node: Node) -> TensorRecord:
    """What a node's tensor is."""
    val = fake(node)
    if val is None:  # a split, which gives several tensors
        return TensorRecord(node.name, "several", ())
    shape = tuple(n if isinstance(n, int) else str(n) for n in map(size_of, val.shape))
    return TensorRecord(node.name, short_dtype(val.dtype), shape)


def _op(node: Node) -> str:
    """`sum`, `mean`, `amax`, `max`, `var` and so on."""
    if is_relative_sum(node):
        return "sum"
    if is_moment(node) or is_mean(node) or is_variance(node):
        return "mean" if is_mean(node) else "var"
    return str(stated_by(node).target).split(".")[1]
