"""Processes that measure: their environment, and time limits."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

EXIT_TIMEOUT = 75


def describe(cpu: bool) -> dict[str, Any]:
    """The report's header."""
    import torch

    driver = "none"
    if not cpu:
        query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            run = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True)
            driver = run.stdout.split("\n")[0]
    versions = {}
    for name in ("triton", "liger-kernel", "quack-kernels"):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = "absent"
    device = "CPU" if cpu else torch.cuda.get_device_name(0)
    date, started = time.strftime("%Y-%m-%d %H:%M:%S %Z"), time.time()
    head = {"device": device, "driver": driver, "torch": torch.__version__, **versions}
    return {**head, "date": date, "started": started}


@contextlib.contextmanager
def time_box(seconds: float, what: str) -> Iterator[None]:
    """End the process with EXIT_TIMEOUT if the body takes longer, also if it hangs in native code."""

    def expire() -> None:
        print(f"{what}: over {seconds:g} s, starting a new process", file=sys.stderr, flush=True)
        os._exit(EXIT_TIMEOUT)

    timer = threading.Timer(seconds, expire)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def run_logged(
    command: Sequence[str], log: Path, limit: float, env: Mapping[str, str], cwd: Path | None = None
) -> tuple[int | None, str]:
    """Run a command with all it prints in `log`: its exit status, None where it did not end within `limit`
    seconds, and what it printed."""
    status: int | None = None
    with log.open("w") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env=env, cwd=cwd)
        try:
            status = process.wait(timeout=limit)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    return status, log.read_text(errors="replace")


def write_whole(path: Path, text: str) -> None:
    """Write a file atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".tmp")
    partial.write_text(text)
    partial.replace(path)
