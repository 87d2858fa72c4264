"""What the schedule needs to know about a device, as plain data."""

from __future__ import annotations

import dataclasses

import torch


@dataclasses.dataclass(frozen=True)
class DeviceInfo:
    """Sizes in bytes, registers in 32-bit words; `num_sm` counts multiprocessors (compute units on AMD).

    `exchanges`: whether its programs can exchange partial results (`codegen.exchange` has PTX for it).
    """

    name: str
    num_sm: int
    shared_memory: int
    registers: int
    max_threads: int
    warp_size: int = 32
    exchanges: bool = True


# What a machine without a GPU plans for: the figures of CUDA's device properties on the H200.
H200 = DeviceInfo("NVIDIA H200", num_sm=132, shared_memory=232448, registers=65536, max_threads=2048)


def device_info(device: torch.device) -> DeviceInfo:
    """Properties of a GPU, or the H200's for the CPU (where kernels are interpreted or only printed)."""
    if device.type == "cpu":
        return H200
    props = torch.cuda.get_device_properties(device)
    return DeviceInfo(
        props.name,
        num_sm=props.multi_processor_count,
        shared_memory=getattr(props, "shared_memory_per_block_optin", 101376),
        registers=getattr(props, "regs_per_multiprocessor", 65536),
        max_threads=props.max_threads_per_multi_processor,
        warp_size=getattr(props, "warp_size", 32),
        exchanges=torch.version.hip is None,
    )
