"""The record of one fused region as plain data: what logs, the trace artifact and `mixorder.explain` show.

Taken before the rewrite, which erases the region's nodes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from torch.fx import Node

from .codegen.source import KernelSource
from .errors import Decline
from .ir.dtypes import short_dtype
from .ir.program import LoopProgram
from .region.nodes import fake, is_mean, is_moment, is_relative_sum, is_variance, size_of, stated_by
from .region.provenance import Provenance, provenance_of
from .region.region import Region
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
class RegionRecord:
    """One fused region, as plain data.

    `rows`, `cols`: their numbers. `dtype`: that of the first outer reduction's operand, or of the largest
    input if there is no outer reduction. `inner`, `outer`: names of the reductions' nodes. `inner_ops`,
    `outer_ops`: what each reduction computes, such as `sum`. `num_nodes`: how many nodes the kernels compute.
    `traffic`: in bytes. `apart`: the loop nests as lowered. `loops`: those that the kernels run. `tuning`:
    the gain from timing, if schedules were timed. `stage_ms`: milliseconds that the pass spent on the region,
    by stage. `peak`: estimated bytes of tensors at the graph's peak, without and with the region. A
    comparison of two records ignores loops and times.
    """

    name: str
    space: str
    rows: int | str
    cols: int | str
    dtype: str
    inner: tuple[str, ...]
    outer: tuple[str, ...]
    num_nodes: int
    strategy: str
    schedule: Plan
    kernels: tuple[KernelSource, ...]
    traffic: Traffic
    expected: Expected
    provenance: Provenance
    inputs: tuple[TensorRecord, ...]
    outputs: tuple[TensorRecord, ...]
    inner_ops: tuple[str, ...]
    outer_ops: tuple[str, ...]
    apart: LoopProgram = dataclasses.field(compare=False, repr=False)
    loops: LoopProgram = dataclasses.field(compare=False, repr=False)
    tuning: Tuning | None = None
    peak: tuple[int, int] | None = None
    stage_ms: tuple[tuple[str, float], ...] = dataclasses.field(default=(), compare=False, repr=False)

    @property
    def pass_ms(self) -> float:
        """Milliseconds that the pass spent on the region, from the search to the rewrite."""
        return sum(ms for _, ms in self.stage_ms)


def describe(
    region: Region,
    strategy: str,
    nests: tuple[LoopProgram, LoopProgram],
    schedule: Plan,
    kernels: Sequence[KernelSource],
    traffic: Traffic,
    expected: Expected,
    tuning: Tuning | None = None,
) -> RegionRecord:
    """The record of a region; `nests` are its loops as lowered and as the kernels run them."""
    source = region.outer[0].args[0] if region.outer else max(region.inputs, key=_numel)
    val = fake(source)  # type: ignore[arg-type]
    assert val is not None
    return RegionRecord(
        region.name,
        str(region.space),
        _number(region.space.rows),
        _number(region.space.cols),
        str(val.dtype),
        tuple(n.name for n in region.inner),
        tuple(n.name for n in region.outer),
        len(region.nodes),
        strategy,
        schedule,
        tuple(kernels),
        traffic,
        expected,
        provenance_of(region.named_after),
        tuple(map(_tensor, region.inputs)),
        tuple(map(_tensor, region.outputs)),
        tuple(map(_op, region.inner)),
        tuple(map(_op, region.outer)),
        *nests,
        tuning,
    )


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
            "provenance": dataclasses.asdict(record.provenance) if record.provenance else None,
        }
    plain = {f.name: getattr(record, f.name) for f in dataclasses.fields(record)}
    plain.update(
        {
            "schedule": dataclasses.asdict(record.schedule),
            "kernels": [_kernel(kernel) for kernel in record.kernels],
            "traffic": dataclasses.asdict(record.traffic) | {"total": record.traffic.total},
            "expected": dataclasses.asdict(record.expected) | {"share": record.expected.share},
            "provenance": dataclasses.asdict(record.provenance),
            "inputs": [dataclasses.asdict(tensor) for tensor in record.inputs],
            "outputs": [dataclasses.asdict(tensor) for tensor in record.outputs],
            "apart": str(record.apart),
            "loops": str(record.loops),
            "tuning": dataclasses.asdict(record.tuning) if record.tuning else None,
            "peak": record.peak,
            "stage_ms": dict(record.stage_ms),
        }
    )
    return plain


def _kernel(kernel: KernelSource) -> dict[str, Any]:
    grid = kernel.grid if isinstance(kernel.grid, int) else str(kernel.grid)
    return dataclasses.asdict(kernel) | {"grid": grid}


def _tensor(node: Node) -> TensorRecord:
    val = fake(node)
    if val is None:  # a split, which gives several tensors
        return TensorRecord(node.name, "several", ())
    shape = tuple(n if isinstance(n, int) else str(n) for n in map(size_of, val.shape))
    return TensorRecord(node.name, short_dtype(val.dtype), shape)


def _numel(node: Node) -> int:
    val = fake(node)
    return 0 if val is None else val.numel()


def _op(node: Node) -> str:
    """`sum`, `mean`, `amax`, `max`, `var` and so on."""
    if is_relative_sum(node):
        return "sum"
    if is_moment(node) or is_mean(node) or is_variance(node):
        return "mean" if is_mean(node) else "var"
    return str(stated_by(node).target).split(".")[1]
