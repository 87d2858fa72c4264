"""Times and launches of a step in a CUDA graph, as all tools take them (`mixorder/tune/timing.py`)."""

from __future__ import annotations

import ctypes
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mixorder.tune import timing

REPS = 40
PER_TURN = 5  # replays in a row, where several graphs are timed
SETTLE_S = 0.1
SAMPLES_S = 0.2  # of each graph; long ones get fewer samples

# CUgraphNodeType of the CUDA driver API.
_NODE_KINDS = {0: "kernels", 1: "memcpys", 2: "memsets"}


@dataclass(frozen=True)
class Times:
    """Microseconds per replay: the samples, in the order in which they were taken."""

    samples: tuple[float, ...]

    @property
    def median_us(self) -> float:
        return statistics.median(self.samples)

    def halves(self) -> list[float]:
        """The medians of the first half and of the second."""
        middle = len(self.samples) // 2
        return [statistics.median(part) for part in (self.samples[:middle], self.samples[middle:])]


def flush_buffer() -> Tensor:
    """A CUDA buffer that evicts all inputs from L2 when it is overwritten."""
    return torch.empty(timing.flush_bytes(0), dtype=torch.uint8, device="cuda")


def time_in_turns(
    graphs: Mapping[str, timing.Captured[Any]],
    stream: torch.cuda.Stream,
    flush: Tensor,
    reps: int = REPS,
    settle_s: float = SETTLE_S,
) -> dict[str, Times]:
    """Of several graphs, `PER_TURN` replays of each per turn."""
    replayed = {name: captured.graph for name, captured in graphs.items()}
    limits = {"seconds": SAMPLES_S * len(graphs), "settle_s": settle_s, "per_turn": PER_TURN}
    with torch.cuda.stream(stream):
        measured = timing.time_in_turns(replayed, flush, reps, **limits)
    return {name: Times(tuple(samples)) for name, samples in measured.items()}


def count_graph_nodes(raw_graph: int, driver: ctypes.CDLL | None = None) -> dict[str, int]:
    """Number of kernels, memsets, memcpys and other nodes of a `CUgraph`: what one backward
    launches. Asks the driver, so no profiler is attached to the process that is being timed.
    """
    lib = driver or ctypes.CDLL("libcuda.so.1")
    graph = ctypes.c_void_p(raw_graph)
    count = ctypes.c_size_t(0)
    _check(lib.cuGraphGetNodes(graph, None, ctypes.byref(count)))
    nodes = (ctypes.c_void_p * count.value)()
    _check(lib.cuGraphGetNodes(graph, nodes, ctypes.byref(count)))
    counts = {"kernels": 0, "memsets": 0, "memcpys": 0, "other": 0}
    for node in nodes:
        kind = ctypes.c_int(-1)
        _check(lib.cuGraphNodeGetType(ctypes.c_void_p(node), ctypes.byref(kind)))
        counts[_NODE_KINDS.get(kind.value, "other")] += 1
    return counts


def _check(status: int) -> None:
    if status != 0:
        raise RuntimeError(f"CUDA driver API returned {status}")
