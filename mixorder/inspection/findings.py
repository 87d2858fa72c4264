"""What mixorder does to a model, as data: graphs, regions, near misses, and the norms of a module."""

from __future__ import annotations

import dataclasses
import json

from ..errors import Decline, MixorderError
from ..record import RegionRecord, as_dict
from ..schedule.device import DeviceInfo
from .roofline import Work, microseconds


@dataclasses.dataclass(frozen=True)
class GraphRecord:
    """One graph that Inductor would compile.

    `kind`: `forward` or `backward`. `records`: its regions and declined pairs, in order. `failures`: bugs of
    mixorder that prevented a fusion. `runs`: how often the graph ran. `work`: what its operators compute and
    move; None if that was not counted."""

    kind: str
    num_nodes: int
    records: tuple[RegionRecord | Decline, ...]
    failures: tuple[MixorderError, ...] = ()
    runs: int = 1
    work: Work | None = None


@dataclasses.dataclass(frozen=True)
class Norm:
    """A normalisation module: its path and class, and the reason why it is in no region (empty if it is)."""

    path: str
    kind: str
    reason: str = ""


@dataclasses.dataclass(frozen=True)
class Totals:
    """Sums over all regions. A region counts once for each run of its graph: `runs` in all.

    `launches_apart`, `launches`: without and with mixorder. Predicted microseconds: `limit_us` of the limit,
    `fused_us` of mixorder's kernels, `apart_us` of Inductor's kernels for the same nodes, and `outside_us` of
    Inductor's loops that store tensors only because mixorder's kernels read them.
    """

    regions: int
    runs: int
    misses: int
    launches_apart: int
    launches: int
    limit_us: float
    fused_us: float
    outside_us: float
    apart_us: float

    @property
    def ours_us(self) -> float:
        """Microseconds of everything that runs if the regions are fused."""
        return self.fused_us + self.outside_us

    @property
    def saved_us(self) -> float:
        """The predicted saving of a step."""
        return self.apart_us - self.ours_us


@dataclasses.dataclass(frozen=True)
class Findings:
    """What mixorder does to a model; regions are numbered over all graphs.

    `device`: the device that schedules were chosen for, an H200 if there is no GPU. `versions`: of the
    packages, by name. `notes`: what was unusual in the run, such as that it had no backward.
    """

    graphs: tuple[GraphRecord, ...]
    norms: tuple[Norm, ...]
    graph_breaks: int
    device: DeviceInfo
    on_gpu: bool
    versions: dict[str, str]
    notes: tuple[str, ...] = ()

    @property
    def regions(self) -> tuple[RegionRecord, ...]:
        """All fused regions, in the order of their numbers."""
        return tuple(r for g in self.graphs for r in g.records if isinstance(r, RegionRecord))

    @property
    def misses(self) -> tuple[Decline, ...]:
        """The pairs that were found and left to Inductor."""
        return tuple(r for g in self.graphs for r in g.records if isinstance(r, Decline))

    @property
    def roofline_us(self) -> float:
        """Microseconds that a step takes at least, by what its graphs compute and move; 0 if that or the peak
        of the device is unknown."""
        if any(graph.work is None for graph in self.graphs):
            return 0.0
        return sum(g.runs * microseconds(g.work, self.device) for g in self.graphs if g.work is not None)

    @property
    def totals(self) -> Totals:
        """Sums over all regions."""
        ran = [r for g in self.graphs for r in g.runs * g.records if isinstance(r, RegionRecord)]
        return Totals(
            len(self.regions),
            len(ran),
            len(self.misses),
            sum(r.expected.launches_apart for r in ran),
            sum(r.expected.launches for r in ran),
            sum(r.expected.limit_us for r in ran),
            sum(r.expected.fused_us for r in ran),
            sum(r.expected.outside_us for r in ran),
            sum(r.expected.apart_us for r in ran),
        )

    def graph_of(self, i: int) -> GraphRecord:
        """The graph that region `i` is in. IndexError beyond the last."""
        return [g for g in self.graphs for r in g.records if isinstance(r, RegionRecord)][i]

    def kernel(self, i: int) -> str:
        """Triton text of region `i`: the main kernel and the finalisation. IndexError beyond the last."""
        return "\n\n".join(kernel.text for kernel in self.regions[i].kernels)

    def graph(self, i: int) -> str:
        """Loop nests of region `i`, as lowered and as its kernels run them. IndexError beyond the last."""
        record = self.regions[i]
        return f"before\n{record.planning.lowered}\n\nafter\n{record.loops}"

    def to_json(self) -> str:
        """All findings, with kernels and loops. Units: bytes, microseconds, milliseconds in `stage_ms`."""
        return json.dumps(
            {
                "versions": self.versions,
                "device": dataclasses.asdict(self.device),
                "on_gpu": self.on_gpu,
                "graph_breaks": self.graph_breaks,
                "notes": self.notes,
                "totals": dataclasses.asdict(self.totals)
                | {"saved_us": self.totals.saved_us, "roofline_us": self.roofline_us},
                "norms": [dataclasses.asdict(norm) for norm in self.norms],
                "graphs": [
                    {
                        "kind": g.kind,
                        "num_nodes": g.num_nodes,
                        "runs": g.runs,
                        "records": [as_dict(r) for r in g.records],
                    }
                    for g in self.graphs
                ],
            },
            indent=1,
        )
