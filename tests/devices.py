"""Devices to choose schedules for; `schedule/device.py` has the H200, on which the heuristic was measured."""

import dataclasses

from mixorder.schedule.device import MEASURED as H200
from mixorder.schedule.device import DeviceInfo

A100 = DeviceInfo(
    "A100", 108, 166912, 65536, max_threads=2048, bandwidth=2.0e12, overlaps=False, saturates=False
)
H100 = dataclasses.replace(H200, name="NVIDIA H100 80GB HBM3", bandwidth=3.35e12)
RTX = DeviceInfo("RTX", 128, shared_memory=101376, registers=65536, max_threads=1536, bandwidth=1.0e12)
L40S = DeviceInfo("L40S", 142, 101376, 65536, max_threads=1536, bandwidth=0.864e12, overlaps=False)
B200 = DeviceInfo("B200", 148, shared_memory=232448, registers=65536, max_threads=2048, bandwidth=8.0e12)
MI300 = DeviceInfo(
    "MI300",
    304,
    65536,
    131072,
    2048,
    warp_size=64,
    exchanges=False,
    overlaps=False,
    saturates=False,
    runs_ptx=False,
)
# None of these exists: few registers per multiprocessor, and many small ones with wide warps.
SMALL = DeviceInfo("small", num_sm=8, shared_memory=65536, registers=65536, max_threads=1024)
TINY = DeviceInfo("tiny", num_sm=20, shared_memory=65536, registers=65536, max_threads=1024)
AMD = dataclasses.replace(SMALL, name="amd", num_sm=304, warp_size=64, runs_ptx=False)

REAL = (H200, H100, A100, RTX, B200, MI300, L40S)
DEVICES = (*REAL, SMALL, TINY, AMD)
