"""Processes that compile side by side and measure on one GPU in turns; their results, a line of JSON each."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import gzip
import json
import lzma
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from .pool import ENVIRONMENT, Pool

# What is measured is what users have by default.
_NOT_OURS = ("MIXORDER", "TORCHINDUCTOR_MIX_ORDER_REDUCTION", "MIXORDER_STRICT", "MIXORDER_DUMP")


@contextlib.contextmanager
def measuring(module: str, device: str, workers: int, threads: int = 1) -> Iterator[tuple[Pool, str]]:
    """Processes that run a module's `work` for "cuda" or, in the interpreter, "cpu", each of which compiles
    kernels in so many threads; and the file of their `Turn`."""
    for name in _NOT_OURS:
        os.environ.pop(name, None)
    with tempfile.TemporaryDirectory(prefix="mixorder-measuring-", ignore_cleanup_errors=True) as folder:
        pool = Pool(workers, module, "work", environment(device, folder, threads))
        try:
            yield pool, f"{folder}/turn"
        finally:
            pool.close()


def measured(
    module: str,
    tasks: Sequence[Any],
    args: argparse.Namespace,
    path: Path,
    limits: tuple[float, float],
    taken: Callable[[Any, Any], Any],
    told: Callable[[Any], str],
    threads: int = 1,
) -> list[Any]:
    """The records of tasks, each `taken` from a task and its result, and a line of `path` as it ends. Prints
    what is `told` of it. `args` has `device`, `workers` and `seconds`, in all. `limits`: seconds of a task,
    and from the last start of one to the end. Each process compiles kernels in so many `threads`."""
    records, started = list[Any](), time.monotonic()
    path.parent.mkdir(parents=True, exist_ok=True)
    with measuring(module, args.device, max(1, min(args.workers, len(tasks))), threads) as (pool, turn):
        todo = [dataclasses.replace(task, turn=turn) for task in tasks]
        ends = started + args.seconds
        until = ends - min(limits[1], args.seconds / 4)
        for i, (task, result) in enumerate(pool.run(todo, limits[0], until, ends=ends), 1):
            records.append(record := taken(task, result))
            append(path, dataclasses.asdict(record))
            print(f"{time.monotonic() - started:4.0f} s, {i} of {len(todo)}: {told(record)}", flush=True)
    return records


def environment(device: str, folder: str, threads: int) -> dict[str, str]:
    """Of the processes. Of Inductor's caches only that of what it has timed is on, so that kernels which both
    ways have in common are timed once; nothing of an earlier run is found."""
    return {
        "TORCHINDUCTOR_COMPILE_THREADS": str(threads),
        "OMP_NUM_THREADS": ENVIRONMENT["OMP_NUM_THREADS"],
        "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor",
        "TRITON_CACHE_DIR": f"{folder}/triton",
        "TORCHINDUCTOR_FX_GRAPH_CACHE": "0",  # a hit would run no pass
        "TORCHINDUCTOR_AUTOGRAD_CACHE": "0",
        "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
        "HF_HUB_OFFLINE": "1",
        "TEARDOWN_CUPTI": "0",
        **({} if device == "cuda" else {"TRITON_INTERPRET": "1"}),
    }


def append(path: Path, record: dict[str, Any]) -> None:
    """A line of JSON at the end of a file; of a `.gz`, a part that can be read whatever becomes of the
    next."""
    line = f"{json.dumps(record)}\n".encode()
    with path.open("ab") as lines:
        lines.write(gzip.compress(line) if path.suffix == ".gz" else line)


def of_commit(on: str, commit: str) -> str:
    """What a record that is kept was measured on: without the build of torch, with its commit."""
    return re.sub(r"\+\w+", "", on) + f", {commit}"


def read(paths: Iterable[Path]) -> Iterator[dict[str, Any]]:
    """The lines of files, compressed if they end in `.xz`. A line that was cut off is left out."""
    for path in paths:
        raw = path.read_bytes()
        text = (lzma.decompress(raw) if path.suffix == ".xz" else raw).decode()
        for line in text.splitlines():
            with contextlib.suppress(json.JSONDecodeError):
                yield json.loads(line)


def known(cls: type, values: dict[str, Any]) -> dict[str, Any]:
    """The values that a record has fields for: other versions have others."""
    names = {f.name for f in dataclasses.fields(cls)}
    return {name: value for name, value in values.items() if name in names}
