"""Sizes that all GPUs of NVIDIA have; `schedule.device.DeviceInfo` has those in which they differ."""

ACCESS = 16  # bytes of the widest access of a thread
ASYNC_BYTES = 4  # of the narrowest that is copied to shared memory asynchronously, as Triton prefetches
SECTOR = 32  # bytes that device memory and L2 move at once
LINE = 128  # bytes of a line of a cache
WARP = 32  # threads
MAX_THREADS = 1024  # of a program
MAX_REGISTERS = 255  # of a thread, of 32 bits
