"""The timer of CUDA graphs, on a clock of its own: the order of replays, how many there are, what is between
events."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mixorder.tune.timing import MIN_REPS, time_in_turns


class Device:
    """Replays take `ms` each, which the host's clock shows; `done` says what has run, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.done = 0.0, list[str]()
        monkeypatch.setattr(torch.cuda, "Event", lambda enable_timing: Event(self))
        monkeypatch.setattr(torch.cuda, "synchronize", lambda: self.done.append("wait"))
        monkeypatch.setattr(time, "perf_counter", lambda: self.now / 1e3)

    def graph(self, name: str, ms: float) -> Any:
        return SimpleNamespace(replay=lambda: self.run(name, ms))

    def run(self, name: str, ms: float) -> None:
        self.done.append(name)
        self.now += ms

    @property
    def flush(self) -> Any:
        return SimpleNamespace(zero_=lambda: self.run("flush", 1.0))


class Event:
    def __init__(self, device: Device) -> None:
        self.device, self.at = device, 0.0

    def record(self) -> None:
        self.at = self.device.now

    def elapsed_time(self, end: Event) -> float:
        return end.at - self.at


def test_graphs_take_turns_in_both_directions_with_a_cold_l2(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device(monkeypatch)
    graphs = {"a": device.graph("a", 2.0), "b": device.graph("b", 3.0)}
    times = time_in_turns(graphs, device.flush, 6, seconds=9.0, settle_s=0.02, per_turn=2)
    assert times == {"a": [pytest.approx(2000.0)] * 6, "b": [pytest.approx(3000.0)] * 6}
    settled = ["flush", "a", "flush", "b", "wait"] * 3  # 7 ms each, until 20 have passed
    assert device.done[: len(settled)] == settled
    turns = ["a"] * 2 + ["b"] * 4 + ["a"] * 4 + ["b"] * 2
    assert device.done[len(settled) :] == [*(step for name in turns for step in ("flush", name)), "wait"]


@pytest.mark.parametrize(("seconds", "reps"), [(1.0, 40), (0.1, 20), (0.001, MIN_REPS)])
def test_long_graphs_get_fewer_samples(monkeypatch: pytest.MonkeyPatch, seconds: float, reps: int) -> None:
    device = Device(monkeypatch)
    times = time_in_turns({"a": device.graph("a", 4.0)}, device.flush, 40, seconds=seconds, settle_s=0.0)
    assert len(times["a"]) == reps
    assert device.done.count("wait") == 3  # twice before the first sample, once after the last
