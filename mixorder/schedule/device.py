"""What the plan needs to know about a device, as plain data."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from ..ir.hardware import MAX_THREADS


@dataclasses.dataclass(frozen=True)
class DeviceInfo:
    """Sizes in bytes, registers in 32-bit words; `num_sm` counts multiprocessors (compute units on AMD).

    `exchanges`: whether its programs can exchange partial results (`codegen.exchange` has PTX for it).
    `overlaps`: whether it has programmatic dependent launch (`codegen.programmatic_launch`). `saturates`:
    whether it casts what is beyond the range of a float8 to the largest one. `runs_ptx`: whether it is of
    NVIDIA. `bandwidth` of its memory, bytes per second; 0 if unknown.
    """

    name: str
    num_sm: int
    shared_memory: int
    registers: int
    max_threads: int
    warp_size: int = 32
    exchanges: bool = True
    overlaps: bool = True
    saturates: bool = True
    runs_ptx: bool = True
    bandwidth: float = 0.0

    @property
    def max_warps(self) -> int:
        """The most of a program."""
        return MAX_THREADS // self.warp_size

    @property
    def slower(self) -> float:
        """How many times as long its memory takes as that of the device that was measured."""
        return MEASURED.bandwidth / self.bandwidth if self.bandwidth else 1.0

    @property
    def bytes_under_way(self) -> float:
        """How many times as many bytes of loads have to be under way on a multiprocessor as where measured.
        Latencies are alike, so that these are proportional to its bandwidth; within one step of what was
        measured."""
        return max(0.5, min(2.0, MEASURED.num_sm / self.num_sm / self.slower)) if self.bandwidth else 1.0


# The device that was measured, and that a machine without a GPU plans for: its CUDA device properties, and
# the bandwidth of its data sheet.
MEASURED = DeviceInfo(
    "NVIDIA H200", num_sm=132, shared_memory=232448, registers=65536, max_threads=2048, bandwidth=4.8e12
)


def device_info(device: torch.device) -> DeviceInfo:
    """Properties of a GPU; the measured one's for the CPU (where kernels are interpreted or only printed)."""
    if device.type == "cpu":
        return MEASURED
    props = torch.cuda.get_device_properties(device)
    registers = getattr(props, "regs_per_multiprocessor", 65536)
    return DeviceInfo(
        props.name,
        num_sm=props.multi_processor_count,
        shared_memory=getattr(props, "shared_memory_per_block_optin", 101376),
        registers=registers,
        max_threads=props.max_threads_per_multi_processor,
        warp_size=getattr(props, "warp_size", 32),
        # A maximum that propagates NaN needs sm_80. With fewer registers, fewer programs are resident.
        exchanges=torch.version.hip is None and props.major >= 8 and registers >= MEASURED.registers,
        overlaps=torch.version.hip is None and props.major >= 9,
        saturates=torch.version.hip is None and (props.major, props.minor) >= (8, 9),
        runs_ptx=torch.version.hip is None,
        bandwidth=_bandwidth(props),
    )


def _bandwidth(props: Any) -> float:
    """Bytes per second from clock (kHz, two transfers each) and bus width (bits); 0 if torch lacks these.

    0 on AMD, too, where the transfers per clock differ between generations.
    """
    if torch.version.hip is not None:
        return 0.0
    clock, width = getattr(props, "memory_clock_rate", 0), getattr(props, "memory_bus_width", 0)
    return 2 * 1e3 * clock * width / 8
