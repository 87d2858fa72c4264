"""Candidates of a target compiled, in parallel processes, and timed, one after the other."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from mixorder.codegen.load import load_function
from mixorder.codegen.source import KernelSource
from mixorder.errors import Decline
from mixorder.ir.program import NUM_SPLITS, BufferRole, LoopProgram
from mixorder.schedule.device import device_info
from mixorder.strategies import STRATEGIES
from mixorder.tune.timing import capture

from .candidates import CHOICES, Candidate
from .schedules import Row
from .schedules import Target as Measured
from .targets import Target
from .timing import time_in_turns

AHEAD = 3  # targets that are compiled while one is timed


Job = tuple[KernelSource, tuple[torch.dtype, ...]]  # a kernel, and the dtypes of its buffers


def warm(job: Job) -> dict[str, Any]:
    """Compile one kernel into Triton's disk cache; runs in a worker process."""
    source, dtypes = job
    config = source.config
    try:
        kernel = load_function(source.module_text, source.name).warmup(
            *dtypes,
            **dict(config.constants),
            grid=(1,),
            num_warps=config.num_warps,
            num_stages=config.num_stages,
            launch_pdl=source.waits,
        )
        kernel._init_handles()
    except Exception as error:  # a candidate that does not compile is a result
        return {"error": f"{type(error).__name__}: {str(error)[:200]}"}
    return {
        "registers": kernel.n_regs,
        "spills": kernel.n_spills,
        "shared": kernel.metadata.shared,
    }


def allocate(program: LoopProgram, num_splits: int) -> dict[str, torch.Tensor]:
    """Random inputs, poisoned outputs and workspaces."""
    tensors = {}
    for buffer in program.buffers:
        size, stride = (
            [int(e.subs(NUM_SPLITS, num_splits)) for e in exprs] for exprs in (buffer.shape, buffer.stride)
        )
        tensor = torch.empty_strided(size, stride, dtype=buffer.dtype, device="cuda")
        if buffer.fill is not None:
            tensor.fill_(buffer.fill)
        elif buffer.role is BufferRole.INPUT:
            values = torch.randn(tensor.shape, device="cuda")
            tensor.copy_(
                values > 0 if tensor.dtype == torch.bool else values.abs_() if size[-1] == 1 else values
            )
        else:
            tensor.fill_(float("nan") if tensor.is_floating_point() else 0)
        tensors[buffer.name] = tensor
    return tensors


def launcher(source: KernelSource, tensors: dict[str, torch.Tensor]) -> Callable[[], None]:
    kernel, config = load_function(source.module_text, source.name), source.config
    args = [tensors[name] for name in source.buffers]
    options = {
        "num_warps": config.num_warps,
        "num_stages": config.num_stages,
        "launch_pdl": source.waits,
        **dict(config.constants),
    }

    def launch() -> None:
        kernel[(source.grid,)](*args, **options)

    return launch


def in_order(launches: Sequence[Callable[[], None]]) -> None:
    for launch in launches:
        launch()


def time_alone(run: Callable[[], Any], flush: torch.Tensor, reps: int) -> float:
    """Median microseconds. Clocks are up: candidates follow one another."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        run()
    return time_in_turns({"": capture(run, stream)}, stream, flush, reps, settle_s=0.0)[""].median_us


def time_limit(numel: int, dtype: torch.dtype, flush: torch.Tensor, reps: int) -> float:
    x, dy = (torch.randn(numel, device="cuda", dtype=dtype) for _ in range(2))
    out = torch.empty_like(x)
    return time_alone(lambda: torch.add(x, dy, out=out), flush, reps)


@dataclasses.dataclass(frozen=True)
class Compiling:
    """A target whose candidates are being compiled: each with its kernels, and what will be known of them."""

    target: Target
    candidates: tuple[tuple[Candidate, tuple[KernelSource, ...], tuple[Any, ...]], ...]


def compiling(target: Target, submit: Callable[[Job], Any], choice: str) -> Compiling:
    """The candidates of one of `CHOICES`, handed out for compilation."""
    found = []
    for c in CHOICES[choice](target.program, device_info(torch.device("cuda"))):
        sources = c.strategy.generate(c.loops, c.schedule, "tune")
        dtypes = (tuple(c.loops.buffer(b).dtype for b in source.buffers) for source in sources)
        found.append((c, sources, tuple(map(submit, zip(sources, dtypes, strict=True)))))
    return Compiling(target, tuple(found))


def tune(work: Compiling, reps: int, flush: torch.Tensor) -> Measured:
    """Time a target's candidates as they get compiled."""
    torch.cuda.empty_cache()
    target = work.target
    limit = time_limit(target.limit_numel, target.dtype, flush, reps)
    rows = []
    for c, sources, futures in work.candidates:
        reports = [future.result() for future in futures]
        error = next((r["error"] for r in reports if "error" in r), None)
        us = None
        if error is None:
            try:
                us = round(time_pair(c, sources, flush, reps), 2)
            except RuntimeError as failure:
                error = str(failure)[:200]
        if error is not None:
            print(f"{c.strategy.name} {c.schedule!r}: {error}", file=sys.stderr)
        use = (reports[0].get(name) for name in ("registers", "spills", "shared"))
        rows.append(Row(c.strategy.name, c.schedule, *use, us))
    return measured(target, round(limit, 2), rows)


def measured(target: Target, limit_us: float, rows: Sequence[Row]) -> Measured:
    """A target's entry in the file."""
    facts = {}
    for strategy in STRATEGIES:
        with contextlib.suppress(Decline):
            strategy.applies(target.program)
            facts[strategy.name] = strategy.facts(strategy.transform(target.program))
    return Measured(target.name, str(target.dtype), limit_us, facts, tuple(rows))


def time_pair(c: Candidate, sources: tuple[KernelSource, ...], flush: torch.Tensor, reps: int) -> float:
    """Microseconds of all launches, and of filling the buffers that have to be filled before."""
    tensors = allocate(c.loops, c.schedule.num_splits)
    launches = [launcher(s, tensors) for s in sources]
    for buffer in c.loops.buffers:
        if buffer.fill is not None:
            launches.insert(0, functools.partial(tensors[buffer.name].fill_, buffer.fill))
    return time_alone(functools.partial(in_order, launches), flush, reps)


def ahead(count: int, items: Iterator[Compiling]) -> Iterator[Compiling]:
    """The same, so many begun before each is handed on: the processors compile while the GPU is timing."""
    begun = collections.deque(itertools.islice(items, count))
    while begun:
        begun.extend(itertools.islice(items, 1))
        yield begun.popleft()
