"""Times of CUDA graphs: replays on the current stream with a cold L2, the graphs in turns, between events.

Only the replay is between its events. The host waits once, for all samples. Before each replay a buffer is
overwritten, to evict the inputs from L2; this takes longer than the host takes to launch a replay.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")
Events = tuple[torch.cuda.Event, torch.cuda.Event]

MIN_REPS = 5


@dataclass(frozen=True)
class Captured(Generic[T]):
    """A step in a CUDA graph. `outputs` is the step's result; each replay overwrites its tensors.
    `step` keeps alive the tensors that a replay reads."""

    graph: torch.cuda.CUDAGraph
    outputs: T
    step: Callable[[], T]


def flush_bytes(device: torch.device | int) -> int:
    """Bytes to overwrite in order to evict everything else from the L2 of a GPU: twice as many as it has."""
    properties = torch.cuda.get_device_properties(device)
    return max(256 * 2**20, 2 * int(getattr(properties, "L2_cache_size", 0)))


def capture(step: Callable[[], T], stream: torch.cuda.Stream) -> Captured[T]:
    """Capture one run of `step` on `stream`; `step` must have run before. The graph's nodes can be counted.

    If `step` raises, its error is raised, not the resulting error of the capture.
    """
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        graph.capture_begin(capture_error_mode="thread_local")
        try:
            outputs = step()
        except Exception:
            with contextlib.suppress(RuntimeError):
                graph.capture_end()
            raise
        graph.capture_end()
        graph.instantiate()
    return Captured(graph, outputs, step)


def time_in_turns(
    graphs: Mapping[K, torch.cuda.CUDAGraph],
    flush: torch.Tensor,
    reps: int,
    *,
    seconds: float,
    settle_s: float,
    per_turn: int = 1,
) -> dict[K, list[float]]:
    """Microseconds of `reps` replays of each graph, in the order in which they were taken.

    The graphs take turns of `per_turn` replays, every other time in reverse, so that a drift of the clocks
    affects all alike. Before the first sample all are replayed for `settle_s`, at least twice, until clocks
    have risen again after a compile. If the replays would take more than `seconds`, there are fewer, but at
    least `MIN_REPS`.
    """
    deadline = time.perf_counter() + settle_s
    round_s, rounds = 0.0, 0
    while rounds < 2 or time.perf_counter() < deadline:
        start = time.perf_counter()
        for graph in graphs.values():
            replayed(graph, flush)
        torch.cuda.synchronize()
        round_s, rounds = time.perf_counter() - start, rounds + 1
    reps = min(reps, max(MIN_REPS, int(seconds / max(round_s, 1e-6))))
    events: dict[K, list[Events]] = {key: [] for key in graphs}
    for turn in range(-(-reps // per_turn)):
        for key in list(graphs)[:: -1 if turn % 2 else 1]:
            events[key] += [replayed(graphs[key], flush) for _ in range(per_turn)]
    torch.cuda.synchronize()
    return {key: [1e3 * start.elapsed_time(end) for start, end in pairs] for key, pairs in events.items()}


def replayed(graph: torch.cuda.CUDAGraph, flush: torch.Tensor) -> Events:
    """Replay a graph once with a cold L2; the events around it."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    flush.zero_()
    start.record()
    graph.replay()
    end.record()
    return start, end
