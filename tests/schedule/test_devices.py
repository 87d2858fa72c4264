"""Devices that were never measured: what is chosen goes with what they have."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mixorder.schedule import device as device_module
from mixorder.schedule.device import device_info


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
