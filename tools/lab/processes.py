"""Processes that measure: their environment, and time limits."""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

EXIT_TIMEOUT = 75


def describe(cpu: bool) -> dict[str, Any]:
    """The report's header."""
    import torch

    from mixorder.inductor.versions import package_versions

    driver = "none"
    if not cpu:
        query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            run = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True)
            driver = run.stdout.split("\n")[0]
    device = "CPU" if cpu else torch.cuda.get_device_name(0)
    date, started = time.strftime("%Y-%m-%d %H:%M:%S %Z"), time.time()
    head = {"device": device, "driver": driver, "torch": torch.__version__}
    head |= package_versions("triton", "liger-kernel", "quack-kernels")
    return {**head, "date": date, "started": started}


class Turn:
    """The right to use the GPU, which one process at a time has: a lock on a file. The system gives it back
    where the holder dies. A process that holds it for more than `most_s` seconds is ended (EXIT_TIMEOUT), so
    that one that hangs stops no other. Asking again for what one holds changes nothing."""

    def __init__(self, path: str | Path, most_s: float) -> None:
        self.path, self.most_s = Path(path), most_s
        self._held = contextlib.ExitStack()
        self._since: float | None = None
        self.held_s = self.waited_s = 0.0  # in all

    def take(self) -> None:
        if self._since is not None:
            return
        start = time.perf_counter()
        file = self._held.enter_context(self.path.open("a"))
        fcntl.flock(file, fcntl.LOCK_EX)
        timer = threading.Timer(self.most_s, _expire)
        timer.daemon = True
        timer.start()
        self._held.callback(timer.cancel)
        self._since = time.perf_counter()
        self.waited_s += self._since - start

    def give_back(self) -> None:
        if self._since is not None:
            self.held_s += time.perf_counter() - self._since
            self._since = None
            self._held.close()

    @property
    def held(self) -> bool:
        return self._since is not None

    def __enter__(self) -> Turn:
        self.take()
        return self

    def __exit__(self, *_: object) -> None:
        self.give_back()


def _expire() -> None:
    """End the process, also if it hangs in native code."""
    print("a turn on the GPU is over its time, starting a new process", file=sys.stderr, flush=True)
    os._exit(EXIT_TIMEOUT)


def cpu_seconds() -> float:
    """Of this process and the children it has waited for: the work of a compile, whatever else runs."""
    return sum(os.times()[:4])


def run_logged(
    command: Sequence[str], log: Path, limit: float, env: Mapping[str, str]
) -> tuple[int | None, str]:
    """Run a command with all it prints in `log`: its exit status, None where it did not end within `limit`
    seconds, and what it printed."""
    status: int | None = None
    with log.open("w") as out, contextlib.suppress(subprocess.TimeoutExpired):
        done = subprocess.run(command, stdout=out, stderr=subprocess.STDOUT, env=env, timeout=limit)
        status = done.returncode
    return status, log.read_text(errors="replace")
