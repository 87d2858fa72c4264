"""Devices that were never measured: what is chosen goes with what they have."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import graphs
import pytest
import torch
from devices import A100, B200, H200, L40S
from row_facts import row_facts, with_numbers

from mixorder import planning
from mixorder.errors import Decline
from mixorder.options import Options
from mixorder.schedule import device as device_module
from mixorder.schedule.by_time import GAIN
from mixorder.schedule.cost import Traffic, workspace_bytes
from mixorder.schedule.device import device_info
from mixorder.schedule.fused import fused_kernels
from mixorder.schedule.kernel_time import TIMES
from mixorder.schedule.persistent import choose
from mixorder.strategies import STRATEGIES

RMS = row_facts(32768, 768, load_bytes=4, words=4, staged_bytes=4, instructions=8)
LAYER = with_numbers(RMS, words=6, instructions=10)


@pytest.mark.parametrize("make", [graphs.rms_norm_backward, graphs.layer_norm_backward])
@pytest.mark.parametrize("shape", graphs.BENCHMARK)
def test_each_device_has_a_choice_of_its_own(make: Callable[..., Any], shape: tuple[int, int]) -> None:
    """What is chosen for a device is predicted to run there as fast as what is chosen for any other, within
    what predictions are worth, and leaves few multiprocessors without a program."""
    program = graphs.merged(graphs.only(make(*shape)))
    runner: Any = SimpleNamespace(options=Options(), step=lambda _, stage, *args: stage(*args))
    devices = (H200, A100, L40S, B200)
    chosen = [planning.by_first_strategy(program, device, STRATEGIES, runner) for device in devices]
    for device, mine in zip(devices, chosen, strict=True):
        *_, schedule = mine
        assert schedule.splits >= 0.95 * device.num_sm
        times = [
            fused_kernels(loops, plan, facts, Traffic(0, 0, workspace_bytes(loops, plan.partials), 0)).us(
                device, TIMES
            )
            for _, loops, facts, plan in chosen
        ]
        assert times[chosen.index(mine)] <= min(times) / GAIN


def test_properties_of_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bandwidth is twice the clock in kHz times the bus in bytes, and 0 where torch has neither."""
    known: dict[str, Any] = {
        "name": "A100",
        "major": 8,
        "minor": 0,
        "multi_processor_count": 108,
        "max_threads_per_multi_processor": 2048,
    }
    memory = {"memory_clock_rate": 1_593_000, "memory_bus_width": 5120}
    found: dict[str, Any] = dict(known)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(**found))
    assert device_info(torch.device("cuda")).bandwidth == 0.0
    found.update(memory)
    assert device_info(torch.device("cuda")).bandwidth == pytest.approx(2.04e12, rel=0.01)
    assert device_info(torch.device("cuda")).exchanges and not device_info(torch.device("cuda")).overlaps
    for lacking in ({"major": 7}, {"regs_per_multiprocessor": 32768}):
        monkeypatch.setattr(
            torch.cuda,
            "get_device_properties",
            lambda device, more=lacking: SimpleNamespace(**{**found, **more}),
        )
        assert not device_info(torch.device("cuda")).exchanges
    for minor, saturates in ((0, False), (6, False), (9, True)):  # sm_89 is the first with casts to float8
        found["minor"] = minor
        assert device_info(torch.device("cuda")).saturates == saturates
    found["major"], found["minor"] = 9, 0
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(**found))
    assert device_info(torch.device("cuda")).overlaps
    monkeypatch.setattr(device_module.torch.version, "hip", "6.0")
    assert not device_info(torch.device("cuda")).overlaps
    assert device_info(torch.device("cuda")).bandwidth == 0.0


def test_a_row_that_no_program_holds_says_so() -> None:
    with pytest.raises(Decline):
        choose(dataclasses.replace(LAYER, cols=16384), A100)
