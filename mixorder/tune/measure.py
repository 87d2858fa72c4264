"""Time candidates on the GPU that the region is compiled for.

A candidate's time is the median of replays of a CUDA graph of all its launches, L2 flushed
before each, in microseconds; candidates take turns, so that a drift of the clocks meets all alike. Buffers
have the region's dtypes, sizes (hints for symbolic ones) and strides, and hold random numbers.

The compile that asks may run under fake tensors and other modes, all of which belong to a thread: the work
is done in one of its own. It draws from a generator of its own, too, and gives its memory back to torch.
"""

from __future__ import annotations

import contextvars
import functools
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import torch

from ..codegen.exchange import EMPTY
from ..codegen.kernel import generate
from ..codegen.source import KernelSource
from ..inductor.config import triton_cache_dir
from ..ir.program import NUM_SPLITS, Buffer, BufferRole, LoopProgram
from .compile import compile_all, job_of
from .search import Candidate

T = TypeVar("T")

FLUSH_BYTES = 256 * 2**20  # the least, twice the L2 where that is more; hides what a replay costs the host
SETTLE_S = 0.05  # replays before the first sample, so that clocks are up again after the compile
SAMPLES_S = 1.0  # what the samples of one call may take; long kernels get fewer
MIN_REPS = 5


class NotEnoughMemory(Exception):
    """The device has no room for the region's buffers a second time."""


class Bench:
    """Times the candidates of one region: `programs` are its variants, which share inputs and outputs.

    Raises `NotEnoughMemory`, and RuntimeError where CUDA fails.
    """

    def __init__(self, programs: Mapping[str, LoopProgram], label: str, device: torch.device) -> None:
        self.programs, self.label, self.device = programs, label, device
        self.tensors: dict[tuple[Any, ...], torch.Tensor] = {}
        self.target: tuple[str, int | str, int] | None = None
        self.flush: torch.Tensor | None = None

    def __call__(self, candidates: Sequence[Candidate], reps: int) -> dict[Candidate, float]:
        """Microseconds of those candidates that compile and run, from about `reps` samples each."""
        try:
            return in_own_thread(lambda: self._on_device(candidates, reps))
        except torch.OutOfMemoryError as error:
            raise NotEnoughMemory(str(error)) from error

    def _on_device(self, candidates: Sequence[Candidate], reps: int) -> dict[Candidate, float]:
        with torch.cuda.device(self.device), torch.no_grad():
            torch.cuda.synchronize()  # gives this thread a context; Triton would take that of the first GPU
            if self.flush is None:
                self._prepare()
            graphs = self._graphs(candidates)
            times = self._times(graphs, reps) if graphs else {}
            torch.cuda.synchronize()
            return times

    def _prepare(self) -> None:
        import triton

        target = triton.runtime.driver.active.get_current_target()
        self.target = (target.backend, target.arch, target.warp_size)
        properties = torch.cuda.get_device_properties(self.device)
        flush = max(FLUSH_BYTES, 2 * int(getattr(properties, "L2_cache_size", 0)))
        needed = flush + sum(_storage(next(iter(self.programs.values())), b, 1) for b in self._shared())
        free = torch.cuda.mem_get_info(self.device)[0]
        free += torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device)
        if needed > 0.8 * free:
            raise NotEnoughMemory(f"{needed / 1e6:.0f} MB needed, {free / 1e6:.0f} MB free")
        self.flush = torch.empty(flush, dtype=torch.uint8, device=self.device)

    def _shared(self) -> tuple[Buffer, ...]:
        program = next(iter(self.programs.values()))
        return program.role(BufferRole.INPUT) + program.role(BufferRole.OUTPUT)

    def _graphs(self, candidates: Sequence[Candidate]) -> dict[Candidate, torch.cuda.CUDAGraph]:
        """Each candidate's two launches, captured."""
        assert self.target is not None
        sources = {c: generate(self.programs[c.variant], c.schedule, self.label) for c in candidates}
        jobs = {(c, s): job_of(self.programs[c.variant], s, self.target) for c in sources for s in sources[c]}
        compiled = compile_all(list(jobs.values()), triton_cache_dir(self.device.index or 0))
        stream = torch.cuda.Stream()
        graphs = {}
        for candidate, pair in sources.items():
            kernels = [compiled.get(jobs[candidate, source]) for source in pair]
            if None in kernels:
                continue
            try:
                launches = [
                    self._launch(candidate, source, kernel)
                    for source, kernel in zip(pair, kernels, strict=True)
                ]
                graphs[candidate] = _captured([*self._fills(candidate), *launches], stream)
            except torch.OutOfMemoryError:
                raise
            except Exception as error:
                if not _out_of_resources(error):
                    raise
        return graphs

    def _fills(self, candidate: Candidate) -> list[Callable[[], None]]:
        """What empties the words of a row that is shared, before each run."""
        program = self.programs[candidate.variant]
        words = [b.name for b in program.role(BufferRole.WORDS)]
        tensors = [self._tensor(program, name, candidate.schedule.num_splits) for name in words]
        return [functools.partial(t.fill_, EMPTY) for t in tensors]

    def _launch(self, candidate: Candidate, source: KernelSource, kernel: Any) -> Callable[[], None]:
        program = self.programs[candidate.variant]
        buffers = [self._tensor(program, name, candidate.schedule.num_splits) for name in source.buffers]
        hints = {str(symbol): value for symbol, value in program.hints}
        sizes = [hints[name] for name in source.sizes]
        arguments = (*buffers, *sizes, *(value for _, value in source.config.constants))
        return lambda: kernel[source.grid, 1, 1](*arguments)

    def _tensor(self, program: LoopProgram, name: str, num_splits: int) -> torch.Tensor:
        buffer = program.buffer(name)
        shape, stride = (
            tuple(program.hint(e.subs(NUM_SPLITS, num_splits)) for e in exprs)
            for exprs in (buffer.shape, buffer.stride)
        )
        key = (name, buffer.dtype, shape, stride)
        if key not in self.tensors:
            size = _storage(program, buffer, num_splits) // buffer.dtype.itemsize
            flat = torch.empty(size, dtype=buffer.dtype, device=self.device)
            if buffer.role is BufferRole.INPUT:
                self._randomise(flat, positive=shape[-1:] == (1,))
            self.tensors[key] = flat.as_strided(shape, stride)
        return self.tensors[key]

    def _randomise(self, flat: torch.Tensor, positive: bool) -> None:
        """Normal numbers, or zeros and ones; positive ones where a row has one, such as an `rstd`."""
        generator = torch.Generator(self.device).manual_seed(len(self.tensors))
        if not flat.dtype.is_floating_point:
            bits = torch.randint(0, 2, flat.shape, dtype=torch.uint8, device=self.device, generator=generator)
            flat.copy_(bits)
            return
        flat.normal_(generator=generator)
        if positive:
            flat.abs_()

    def _times(self, graphs: Mapping[Candidate, torch.cuda.CUDAGraph], reps: int) -> dict[Candidate, float]:
        deadline = time.perf_counter() + SETTLE_S
        probe_s, rounds = 0.0, 0
        while rounds < 2 or time.perf_counter() < deadline:
            start = time.perf_counter()
            self._sampled(graphs)
            torch.cuda.synchronize()
            probe_s, rounds = time.perf_counter() - start, rounds + 1
        reps = min(reps, max(MIN_REPS, int(SAMPLES_S / max(probe_s, 1e-6))))
        events = [self._sampled(graphs, backwards=i % 2 == 1) for i in range(reps)]
        torch.cuda.synchronize()
        return {
            c: 1e3 * statistics.median(start.elapsed_time(end) for start, end in (e[c] for e in events))
            for c in graphs
        }

    def _sampled(
        self, graphs: Mapping[Candidate, torch.cuda.CUDAGraph], backwards: bool = False
    ) -> dict[Candidate, tuple[torch.cuda.Event, torch.cuda.Event]]:
        """Replay every graph once; the events around each."""
        assert self.flush is not None
        events = {}
        for candidate in list(graphs)[:: -1 if backwards else 1]:
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            self.flush.zero_()
            start.record()
            graphs[candidate].replay()
            end.record()
            events[candidate] = (start, end)
        return events


def _captured(launches: Sequence[Callable[[], None]], stream: torch.cuda.Stream) -> torch.cuda.CUDAGraph:
    """A CUDA graph of the launches, each of which has run before: the first loads its kernel."""
    for launch in launches:
        launch()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        graph.capture_begin(capture_error_mode="thread_local")
        try:
            for launch in launches:
                launch()
        finally:
            graph.capture_end()
    return graph


def _storage(program: LoopProgram, buffer: Buffer, num_splits: int) -> int:
    """Bytes from a buffer's first element to its last."""
    return (program.hint(buffer.max_offset.subs(NUM_SPLITS, num_splits)) + 1) * buffer.dtype.itemsize


def _out_of_resources(error: Exception) -> bool:
    """Whether a kernel asks for more threads or shared memory than a program may have."""
    from triton.runtime.errors import OutOfResources

    return isinstance(error, OutOfResources)


def in_own_thread(function: Callable[[], T]) -> T:
    """Call a function in a new thread, where no mode of this one is active; configs are the same."""
    context = contextvars.copy_context()
    with ThreadPoolExecutor(1, "mixorder-tune") as pool:
        return pool.submit(context.run, function).result()
