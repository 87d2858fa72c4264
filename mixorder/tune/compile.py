"""Compile candidates' kernels to machine code, in parallel.

Triton holds the interpreter lock while it compiles (two threads took as long as one, triton 3.7.1), so that
only processes help. Inductor has a pool of compile workers, forked from a process without access to a GPU.
They compile for the target into Triton's cache on disk, from which this process reads the results.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..codegen.load import load_function
from ..codegen.source import KernelSource
from ..inductor import versions, workers
from ..inductor.kernels import pointer_type
from ..inductor.symbols import INT32_LIMIT
from ..ir.program import LoopProgram

log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Job:
    """One kernel to compile, as plain data. `signature`: Triton's types of all parameters, in order;
    `target`: backend, architecture and threads per warp; `waits`: see `KernelSource`."""

    module_text: str
    name: str
    signature: tuple[tuple[str, str], ...]
    constants: tuple[tuple[str, int], ...]
    num_warps: int
    num_stages: int
    target: tuple[str, int | str, int]
    waits: bool


def job_of(program: LoopProgram, source: KernelSource, target: tuple[str, int | str, int]) -> Job:
    """The job of a program's kernel; buffers are aligned to 16 bytes, as Inductor's are."""
    hints = {str(symbol): value for symbol, value in program.hints}
    buffers = [program.buffer(name) for name in source.buffers]
    types = {b.pointer: pointer_type(b.dtype) for b in buffers}
    types.update({s: "i32" if hints[s] < INT32_LIMIT else "i64" for s in source.sizes})
    types.update({name: "constexpr" for name, _ in source.config.constants})
    config = source.config
    return Job(
        source.module_text,
        source.name,
        tuple(types.items()),
        config.constants,
        config.num_warps,
        config.num_stages,
        target,
        source.waits,
    )


def compile_job(job: Job) -> Any:
    """The `triton.compiler.CompiledKernel` of a job; from Triton's cache if it is there."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    function = load_function(job.module_text, job.name)
    pointers = [i for i, (_, kind) in enumerate(job.signature) if kind.startswith("*")]
    aligned = {(i,): [["tt.divisibility", 16]] for i in pointers}
    source = ASTSource(function, dict(job.signature), dict(job.constants), aligned)
    options: dict[str, Any] = {"num_warps": job.num_warps, "num_stages": job.num_stages}
    if job.target[0] == "cuda":
        options["launch_pdl"] = job.waits
    return triton.compile(source, target=GPUTarget(*job.target), options=options)


def compile_all(jobs: Sequence[Job], folder: str) -> dict[Job, Any]:
    """The kernels of the jobs that compile; `folder` is Triton's cache. Failures are logged."""
    jobs = list(dict.fromkeys(jobs))
    versions.name_triton_tools()  # those that Inductor will use, too
    compiled = {}
    with environment(triton_settings() | {"TRITON_CACHE_DIR": folder}):
        failed = _in_workers(jobs)
        for job in jobs:
            if job in failed:
                log.debug("%s does not compile: %s", job.name, failed[job])
                continue
            try:
                compiled[job] = compile_job(job)
            except Exception as error:  # a candidate that does not compile is a result
                log.debug("%s does not compile: %s", job.name, error)
    return compiled


def _in_workers(jobs: Sequence[Job]) -> dict[Job, str]:
    """Fill Triton's cache by Inductor's compile workers; returns the errors of jobs that do not compile.

    If there are no workers, or they fail or take two minutes for a kernel, the remaining jobs are neither
    compiled nor in the result.
    """
    failed: dict[Job, str] = {}
    try:
        if len(jobs) < 2 or (pool := workers.pool()) is None:
            return failed
        settings = triton_settings()
        futures = [pool.submit(compile_in_worker, job, settings) for job in jobs]
        for job, future in zip(jobs, futures, strict=True):
            if (error := future.result(120)) is not None:
                failed[job] = error
    except Exception as error:  # the pool is Inductor's: without it, the tuner is slow, not wrong
        log.info("compile workers cannot be used, %s: %s", type(error).__name__, error)
    return failed


def compile_in_worker(job: Job, settings: dict[str, str]) -> str | None:
    """Compile a job in a worker, with the settings of the requesting process; the error, or None."""
    try:
        with environment(settings):
            compile_job(job)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def triton_settings() -> dict[str, str]:
    """The environment variables that determine Triton's output, and its folder."""
    return {name: value for name, value in os.environ.items() if _is_setting(name)}


@contextlib.contextmanager
def environment(settings: Mapping[str, str]) -> Iterator[None]:
    """Inside, exactly these of Triton's variables are set. Variables of another job would change a kernel's
    key in Triton's cache, and it would be compiled twice."""
    before = triton_settings()
    _set(settings)
    try:
        yield
    finally:
        _set(before)


def _set(settings: Mapping[str, str]) -> None:
    for name in triton_settings().keys() - settings.keys():
        del os.environ[name]
    os.environ.update(settings)


def _is_setting(name: str) -> bool:
    return name.startswith("TRITON_") or name == "TORCHINDUCTOR_CACHE_DIR"
