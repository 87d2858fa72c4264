"""Time candidates on the GPU that the region is compiled for.

A candidate's time is the median of replays of a CUDA graph of all its launches (`timing.py`), in
microseconds; candidates take turns. Buffers have the region's dtypes, sizes (hints for symbolic ones) and
strides, and hold random numbers.

The compile may run under fake tensors and other modes, all of which belong to a thread: measuring is done in
a separate thread. It also uses a separate random generator, and returns its memory to torch.
"""

from __future__ import annotations

import contextvars
import functools
import statistics
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import torch

from ..codegen.source import KernelSource
from ..inductor.config import triton_cache_dir
from ..inductor.stock import compile_as_shipped
from ..ir.program import NUM_SPLITS, BufferRole, LoopProgram
from ..rewrite.standalone import Standalone
from ..strategies.strategy import Chosen
from .compile import compile_all, job_of
from .search import Candidate, VersusInductor
from .timing import Captured, capture, flush_bytes, time_in_turns

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")

exclusive_gpu: Callable[[], AbstractContextManager[object]] = nullcontext
"""Entered for all that runs on the GPU, but not to compile. Where processes share a GPU, one that waits."""


Compiled = Mapping[Candidate, Sequence[tuple[KernelSource, Any]]]
"""The kernels of each candidate, as source and as compiled by Triton, in the order of their launches."""


class NotEnoughMemory(Exception):
    """The device has no room for a second copy of the region's buffers."""


class NotComparable(Exception):
    """Inductor does not compile the region's nodes by themselves, or its kernels do not run."""


class Bench:
    """Times the candidates of one region. `ways`: strategies and loops by variant, with common buffers.
    `standalone`: the region's nodes, for Inductor; None where they are not compared.

    Raises `NotEnoughMemory`, and RuntimeError where CUDA fails.
    """

    def __init__(
        self,
        ways: Mapping[str, Chosen],
        label: str,
        device: torch.device,
        standalone: Standalone | None = None,
    ) -> None:
        self.ways, self.label, self.device, self.standalone = ways, label, device, standalone
        self.inductors: Captured[Any] | None = None
        self.tensors: dict[tuple[Any, ...], torch.Tensor] = {}
        self.target: tuple[str, int | str, int] | None = None
        self.flush: torch.Tensor | None = None

    def __call__(self, candidates: Sequence[Candidate], reps: int) -> dict[Candidate, float]:
        """Microseconds of those candidates that compile and run, from about `reps` samples each."""

        def times() -> dict[Candidate, float]:
            compiled = self._compiled(candidates)
            with exclusive_gpu():
                return self._times(self._graphs(compiled), reps)

        return self._on_device(times)

    def versus_inductor(self, candidate: Candidate, reps: int) -> VersusInductor:
        """Microseconds of a candidate and of Inductor's kernels for the same nodes and inputs, in turns.

        Raises `NotComparable` where Inductor's do not compile or run.
        """

        def in_turns() -> VersusInductor:
            compiled = self._compiled([candidate])
            if self.inductors is None:
                self.inductors = self._inductors()
            with exclusive_gpu():
                ours = self._graphs(compiled)[candidate]
                times = self._times({"ours": ours, "Inductor's": self.inductors.graph}, reps)
            return VersusInductor(times["ours"], times["Inductor's"])

        return self._on_device(in_turns)

    def _on_device(self, measured: Callable[[], T]) -> T:
        """The result of a measurement in a thread of its own."""

        def measure() -> T:
            with torch.cuda.device(self.device), torch.no_grad():
                torch.cuda.synchronize()  # gives this thread a context; Triton would take the first GPU's
                if self.flush is None:
                    self._prepare()
                result = measured()
                torch.cuda.synchronize()
                return result

        try:
            return in_own_thread(measure)
        except torch.OutOfMemoryError as error:
            raise NotEnoughMemory(str(error)) from error

    def _inductors(self) -> Captured[Any]:
        """Inductor's kernels for the region's nodes, captured."""
        assert self.standalone is not None
        named = [(i.name, i.dtype, i.shape, i.stride) for i in self.standalone.inputs]
        likes = [(dtype, shape, stride) for _, dtype, shape, stride in named]
        try:
            compiled = compile_as_shipped(self.standalone.module(), likes, self.device)
            with exclusive_gpu():
                step = functools.partial(compiled, [self._made(*like, filled=True) for like in named])
                step()  # Inductor chooses among its kernels' configurations
                return capture(step, torch.cuda.Stream())
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # of Inductor's, whatever it is: there is nothing to compare with
            raise NotComparable(f"{type(error).__name__}: {error}") from error

    def _prepare(self) -> None:
        import triton

        target = triton.runtime.driver.active.get_current_target()
        self.target = (target.backend, target.arch, target.warp_size)
        self.flush = torch.empty(flush_bytes(self.device), dtype=torch.uint8, device=self.device)

    def _compiled(self, candidates: Sequence[Candidate]) -> Compiled:
        """The kernels of those candidates that compile, in the order of their launches."""
        assert self.target is not None
        sources = {
            c: self.ways[c.variant].strategy.generate(self.ways[c.variant].loops, c.schedule, self.label)
            for c in candidates
        }
        jobs = {
            (c, s): job_of(self.ways[c.variant].loops, s, self.target) for c in sources for s in sources[c]
        }
        compiled = compile_all(list(jobs.values()), triton_cache_dir(self.device.index or 0))
        pairs = {c: [(s, compiled.get(jobs[c, s])) for s in sources[c]] for c in candidates}
        return {c: pair for c, pair in pairs.items() if all(kernel is not None for _, kernel in pair)}

    def _graphs(self, compiled: Compiled) -> dict[Candidate, torch.cuda.CUDAGraph]:
        """The launches of each candidate that runs, captured."""
        stream = torch.cuda.Stream()
        graphs = {}
        for candidate, kernels in compiled.items():
            try:
                launches = [self._launch(candidate, source, kernel) for source, kernel in kernels]
                before = (*self._copies(candidate), *self._fills(candidate))
                step = functools.partial(_in_order, (*before, *launches))
                step()  # the first launch loads its kernel
                graphs[candidate] = capture(step, stream).graph
            except torch.OutOfMemoryError:
                raise
            except Exception as error:
                if not _out_of_resources(error):
                    raise
        return graphs

    def _fills(self, candidate: Candidate) -> list[Callable[[], None]]:
        """Functions that initialise buffers before each run, such as an empty mailbox."""
        loops, splits = self.ways[candidate.variant].loops, candidate.schedule.splits
        return [
            functools.partial(self._tensor(loops, b.name, splits).fill_, b.fill)
            for b in loops.buffers
            if b.fill is not None
        ]

    def _copies(self, candidate: Candidate) -> list[Callable[[], None]]:
        """Functions that copy the inputs that the kernels read in other strides than the graph states."""
        loops = self.ways[candidate.variant].loops
        copies: list[Callable[[], None]] = []
        for like in self.standalone.inputs if self.standalone else ():
            read = self._tensor(loops, like.name, candidate.schedule.splits)
            stated = self._made(like.name, like.dtype, like.shape, like.stride, filled=True)
            if stated is not read:
                copies.append(functools.partial(read.copy_, stated))
        return copies

    def _launch(self, candidate: Candidate, source: KernelSource, kernel: Any) -> Callable[[], None]:
        program = self.ways[candidate.variant].loops
        buffers = [self._tensor(program, name, candidate.schedule.splits) for name in source.buffers]
        hints = {str(symbol): value for symbol, value in program.hints}
        sizes = [hints[name] for name in source.sizes]
        arguments = (*buffers, *sizes, *(value for _, value in source.config.constants))
        grid = program.hint(source.grid)
        return lambda: kernel[grid, 1, 1](*arguments)

    def _tensor(self, program: LoopProgram, name: str, num_splits: int) -> torch.Tensor:
        buffer = program.buffer(name)
        shape, stride = (
            tuple(program.hint(e.subs(NUM_SPLITS, num_splits)) for e in exprs)
            for exprs in (buffer.shape, buffer.stride)
        )
        return self._made(name, buffer.dtype, shape, stride, filled=buffer.role is BufferRole.INPUT)

    def _made(
        self, name: str, dtype: torch.dtype, shape: tuple[int, ...], stride: tuple[int, ...], *, filled: bool
    ) -> torch.Tensor:
        """A tensor of this name, the same one each time; `filled`: with random numbers."""
        key = (name, dtype, shape, stride)
        if key not in self.tensors:
            size = 1 + sum((n - 1) * s for n, s in zip(shape, stride, strict=True))
            flat = torch.empty(size, dtype=dtype, device=self.device)
            if filled:
                self._randomise(flat, positive=shape[-1:] == (1,))
            self.tensors[key] = flat.as_strided(shape, stride)
        return self.tensors[key]

    def _randomise(self, flat: torch.Tensor, positive: bool) -> None:
        """Normal numbers, or zeros and ones; positive for one number per row, such as an `rstd`."""
        generator = torch.Generator(self.device).manual_seed(len(self.tensors))
        if not flat.dtype.is_floating_point:
            bits = torch.randint(0, 2, flat.shape, dtype=torch.uint8, device=self.device, generator=generator)
            flat.copy_(bits)
            return
        flat.normal_(generator=generator)
        if positive:
            flat.abs_()

    def _times(self, graphs: Mapping[K, torch.cuda.CUDAGraph], reps: int) -> dict[K, float]:
        """Medians in microseconds, of samples that take a second at most; long kernels get fewer."""
        assert self.flush is not None
        if not graphs:
            return {}
        timings = time_in_turns(graphs, self.flush, reps, seconds=1.0, settle_s=0.05)
        return {key: statistics.median(samples) for key, samples in timings.items()}


def _in_order(launches: Sequence[Callable[[], None]]) -> None:
    for launch in launches:
        launch()


def _out_of_resources(error: Exception) -> bool:
    """Whether a kernel asks for more threads or shared memory than a program may have."""
    from triton.runtime.errors import OutOfResources

    return isinstance(error, OutOfResources)


def in_own_thread(function: Callable[[], T]) -> T:
    """Call a function in a new thread, with this thread's configs but none of its modes."""
    context = contextvars.copy_context()
    with ThreadPoolExecutor(1, "mixorder-tune") as pool:
        return pool.submit(context.run, function).result()
