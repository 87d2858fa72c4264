"""Processes that run a function on tasks, of which any may hang, crash, or lose its device.

In: the path of a module and the name of its function, tasks that can be pickled. Out: a result per task, as
they come, or a `Broken`. The function's result is returned as it is; if it has a true attribute `lost`, its
process is replaced. Processes are spawned, so that each has a CUDA context of its own.
"""

from __future__ import annotations

import dataclasses
import importlib
import multiprocessing
import multiprocessing.connection as connection
import os
import time
from collections.abc import Iterable, Iterator
from typing import Any

FIRST_S = 120  # extra time of a task in a new process
ENVIRONMENT = {
    "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1",  # a hit would run no pass
    "TORCHINDUCTOR_COMPILE_THREADS": "1",  # the processes are the parallelism
    "OMP_NUM_THREADS": "1",
}


@dataclasses.dataclass(frozen=True)
class Broken:
    """The outcome of a task without a result: "hung" (beyond the time limit) or "crashed" (its exit code)."""

    how: str
    code: int | None = None


class _Worker:
    def __init__(self, module: str, function: str, environment: dict[str, str]) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(
            target=_serve, args=(theirs, module, function, environment), daemon=True
        )
        self.process.start()
        theirs.close()
        self.task: Any = None
        self.deadline = 0.0

    def give(self, task: Any, limit: float) -> None:
        self.task, self.deadline = task, time.monotonic() + limit
        self.pipe.send(task)

    def stop(self) -> None:
        self.pipe.close()
        self.process.kill()
        self.process.join()


class Pool:
    """`size` processes, each with `environment` set before it imports `module`."""

    def __init__(self, size: int, module: str, function: str, environment: dict[str, str]) -> None:
        self.size = size
        self._make = lambda: _Worker(module, function, environment)
        self._workers = [self._make() for _ in range(size)]
        self._warm: set[_Worker] = set()  # those that have given a result

    def run(
        self,
        tasks: Iterable[Any],
        limit: float,
        until: float = float("inf"),
        first: float = FIRST_S,
        ends: float = float("inf"),
    ) -> Iterator[tuple[Any, Any]]:
        """Pairs of a task and its result, as they come.

        `limit`: seconds that a task may take, and `first` more in a new process. No task begins after `until`
        and none lasts beyond `ends` (`time.monotonic()`).
        """
        todo = iter(tasks)
        idle, busy = list(self._workers), dict[Any, _Worker]()
        while True:
            while idle and time.monotonic() < until:
                try:
                    task = next(todo)
                except StopIteration:
                    until = 0.0
                    break
                worker = idle.pop()
                most = limit + first * (worker not in self._warm)
                worker.give(task, min(most, ends - time.monotonic()))
                busy[worker.pipe] = worker
            if not busy:
                return
            soonest = min(w.deadline for w in busy.values())
            ready = connection.wait(list(busy), max(0.0, soonest - time.monotonic()))
            late = [pipe for pipe, w in busy.items() if w.deadline <= time.monotonic() and pipe not in ready]
            for pipe in (*ready, *late):
                worker = busy.pop(pipe)
                result = self._result(worker) if pipe in ready else Broken("hung")
                if isinstance(result, Broken) or getattr(result, "lost", False):
                    worker.stop()
                    self._workers[self._workers.index(worker)] = fresh = self._make()
                    idle.append(fresh)
                else:
                    self._warm.add(worker)
                    idle.append(worker)
                yield worker.task, result

    @staticmethod
    def _result(worker: _Worker) -> Any:
        try:
            return worker.pipe.recv()
        except (EOFError, ConnectionResetError):
            worker.process.join()
            return Broken("crashed", worker.process.exitcode)

    def close(self) -> None:
        """End the processes at once, also during a task."""
        for worker in self._workers:
            worker.stop()


def _serve(pipe: Any, module: str, function: str, environment: dict[str, str]) -> None:
    os.environ.update(environment)
    call = getattr(importlib.import_module(module), function)
    while True:
        try:
            task = pipe.recv()
        except EOFError:
            return
        pipe.send(call(task))
