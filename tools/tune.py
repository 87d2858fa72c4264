"""Time schedules of the fused kernels on this GPU, without Inductor around them.

For each shape and norm, or for each region of the cases of `tools/lab/cases.py` that are asked for: lower the
real backward graph once, generate a kernel pair per candidate schedule, compile them in parallel processes
while those of the target before are timed: CUDA-graph replays with a flushed L2. Writes every row to a JSON
file (`lab/schedules.py`), which `tools/fit.py` reads, and prints the best few beside the limit:
`torch.add(x, dy, out=dx)` on the same shape, or on tensors of as many bytes as the region moves. With
`--append`, a file keeps its other targets.

Times are medians in microseconds; a candidate's time includes its finalisation.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import contextlib
import dataclasses
import datetime
import functools
import itertools
import math
import multiprocessing
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import triton
from lab.by_hand import BY_HAND
from lab.schedules import Data, Row, read, write
from lab.schedules import Target as Measured
from lab.targets import Target, case_targets, norm_target
from lab.timing import flush_buffer, time_in_turns

from mixorder.codegen.load import load_function
from mixorder.codegen.source import KernelSource
from mixorder.errors import Decline
from mixorder.ir.program import NUM_SPLITS, BufferRole, LoopProgram
from mixorder.options import source_hash
from mixorder.schedule.constants import FITTED
from mixorder.schedule.cooperative import MAX_PARTS
from mixorder.schedule.device import DeviceInfo, device_info
from mixorder.schedule.facts import ALIGNMENT, Facts
from mixorder.schedule.finalisation import final
from mixorder.schedule.persistent import choose, even, layouts
from mixorder.schedule.persistent_space import PersistentSpace
from mixorder.schedule.schedule import Schedule, Tile
from mixorder.strategies import STRATEGIES, Strategy
from mixorder.tune.timing import capture

SHAPES = "4096x4096,32768x4096,32768x768,32768x2048,8192x8192,1000000x256,1048576x128"
AHEAD = 3  # targets that are compiled while one is timed
SHARE_FROM = 8192  # columns; narrower rows were never faster shared
IN_FLIGHT = range(44 * 1024, 100 * 1024)  # bytes per multiprocessor; fewer and more were never the best
HEAVY = 24  # instructions per element, from which on computing takes its time beside memory
HEAVY_IN_FLIGHT = range(12 * 1024, 100 * 1024)  # then
CHUNKED_SPILL_FACTOR = 1.33  # LayerNorm in bf16, 12288 columns in 3 chunks, compiled for sm_90: 32 bytes
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A way to run a region: the strategy, the loops as it runs them, and a schedule."""

    strategy: Strategy
    loops: LoopProgram
    schedule: Schedule


def candidates(program: LoopProgram, device: DeviceInfo) -> list[Candidate]:
    """The rules' pick first, then a grid around each strategy's own, each schedule once.

    A strategy that reads rows more often is swept where no other takes them.
    """
    found: list[Candidate] = []
    chunked: list[Candidate] = []
    for strategy in STRATEGIES:
        with contextlib.suppress(Decline):
            strategy.applies(program)
            loops = strategy.transform(program)
            facts = strategy.facts(loops)
            if (facts.rereads and found) or (facts.exchanges and facts.cols <= SHARE_FROM):
                continue
            try:
                schedules = grid(strategy, facts, device, strategy.choose(facts, device, 0, FITTED))
            except Decline:
                chunked += _candidates(strategy, loops, in_chunks(strategy, facts, device))
                continue
            found += _candidates(strategy, loops, schedules)
    return list(dict.fromkeys([*found, *chunked]))


def _candidates(strategy: Strategy, loops: LoopProgram, schedules: Iterable[Schedule]) -> Iterator[Candidate]:
    for schedule in schedules:
        yield Candidate(strategy, strategy.place(loops, schedule), schedule)


def grid(strategy: Strategy, facts: Facts, device: DeviceInfo, base: Schedule) -> Iterator[Schedule]:
    """Schedules over the whole of the space that a strategy is searched in."""
    return (single if strategy.space is PersistentSpace else several)(facts, device, base)


def several(facts: Facts, device: DeviceInfo, base: Schedule) -> Iterator[Schedule]:
    """Of several programs to a row: parts, rows per tile, depth and stages."""
    yield base
    for per_sm, xblock, warps, depth, stages in itertools.product(
        (1, 2, 4), (1, 2, 4), (2, 4, 8), (1, 2, 3), (3, 4)
    ):
        for elements in (4096, 8192):
            r0_block = elements // (per_sm * xblock)
            parts = max(2, -(-facts.cols // (r0_block - ALIGNMENT * (base.period > 1))))
            if per_sm * warps != 8 or r0_block < 512 or not 2 <= parts <= MAX_PARTS:
                continue
            part_cols = math.ceil(facts.cols / parts / ALIGNMENT) * ALIGNMENT
            if elements * facts.staged_bytes * (stages - 1) > device.shared_memory:
                continue
            yield dataclasses.replace(
                base,
                tile=Tile(xblock, warps, stages),
                r0_block=r0_block,
                parts=-(-facts.cols // part_cols),
                part_cols=part_cols,
                depth=depth,
                num_splits=whole(min(per_sm * device.num_sm // parts, -(-facts.rows // xblock)), base),
            )


def whole(splits: int, base: Schedule) -> int:
    """So many of each kind of rows (`Schedule.period`)."""
    return max(1, splits // base.period) * base.period


def single(facts: Facts, device: DeviceInfo, base: Schedule) -> Iterator[Schedule]:
    """Of one program to a row: what the numbers found by hand choose, the finalisation, then a grid
    over what a program can hold, for each way to lay a row over lanes."""
    yield base
    with contextlib.suppress(Decline):
        yield choose(facts, device, constants=BY_HAND)
    for block, warps in itertools.product((8, 16, 32), (2, 4, 8)):
        yield dataclasses.replace(base, final_block=min(block, base.r0_block), final_warps=warps)
    for lanes, chunks in layouts(facts):
        layout = dataclasses.replace(base, r0_block=lanes, chunks=chunks)
        for tile, per_sm in tiles(facts, lanes, chunks):
            count = -(-facts.rows // tile.xblock)
            splits = min(-(-per_sm * device.num_sm // facts.batch), count)
            splits = whole(splits, base) if base.period > 1 else even(count, splits)
            final_block, final_warps = final(splits, lanes, device, FITTED)
            yield dataclasses.replace(
                layout, tile=tile, num_splits=splits, final_block=final_block, final_warps=final_warps
            )


def in_chunks(strategy: Strategy, facts: Facts, device: DeviceInfo) -> Iterator[Schedule]:
    """Of a row that the rules have no program hold: chunks, where with them next to nothing is spilled."""
    constants = dataclasses.replace(FITTED, chunk_saving=0.0)
    if strategy.space is PersistentSpace and not facts.rereads:
        with contextlib.suppress(Decline):
            start = choose(facts, device, constants=constants, spill_factor=CHUNKED_SPILL_FACTOR)
            yield from (s for s in single(facts, device, start) if s.chunks > 1)


def tiles(facts: Facts, lanes: int, chunks: int) -> Iterator[tuple[Tile, int]]:
    """Tiles of rows of so many lanes, and how many programs to run on a multiprocessor."""
    for xblock, warps in itertools.product((2**i for i in range(15)), (1, 2, 4, 8, 16, 32)):
        elements = xblock * lanes
        per_thread = elements // (warps * 32)
        # Accesses of fewer than 4 elements of a chunk are too narrow.
        least = 8 if facts.instructions < HEAVY else 4
        fits_a_thread = least <= per_thread <= 40 and per_thread >= 4 * chunks
        if xblock > facts.rows or not 80 * least <= elements <= 16384 or not fits_a_thread:
            continue
        for stages, per_sm in itertools.product(range(1, 7), (1, 2, 4, 8, 16)):
            staged = per_sm * elements * facts.staged_bytes * (stages - 1)
            in_flight = per_sm * xblock * facts.cols * facts.load_bytes * (stages - 1)
            if staged > 225_000 or per_sm * warps < 4:
                continue
            # Many warps hide a load's latency themselves: one stage.
            if facts.instructions >= HEAVY:
                wanted = per_sm * warps <= 64 and (stages == 1 or in_flight in HEAVY_IN_FLIGHT)
            else:
                wanted = per_sm * warps <= 16 and in_flight in IN_FLIGHT
            if wanted:
                yield Tile(xblock, warps, stages), per_sm


Job = tuple[KernelSource, tuple[torch.dtype, ...]]  # a kernel, and the dtypes of its buffers


def _warm(job: Job) -> dict[str, Any]:
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
            tensor.copy_(torch.randn_like(tensor).abs_() if size[-1] == 1 else torch.randn_like(tensor))
        else:
            tensor.fill_(float("nan"))
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


def compiling(target: Target, submit: Callable[[Job], Any]) -> Compiling:
    found = []
    for c in candidates(target.program, device_info(torch.device("cuda"))):
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


def report(target: Measured, best: int) -> None:
    first, ran = target.rows[0], sorted((r for r in target.rows if r.us), key=lambda r: r.us or 0)
    print(
        f"\n{target.name} {target.dtype}: "
        f"limit {target.limit_us:.1f} us, {len(ran)}/{len(target.rows)} candidates ran"
    )
    for row in [*ran[:best], *([first] if first not in ran[:best] else [])]:
        s, tile, us = row.schedule, row.schedule.tile, row.us or math.inf
        print(
            f"  {100 * target.limit_us / us:5.1f}%  {us:8.1f} us  {row.strategy}"
            f" parts {s.parts:2d} x {s.r0_block} depth {s.depth} chunks {s.chunks}"
            f"  xblock {tile.xblock:3d} warps {tile.num_warps:2d} stages {tile.num_stages}"
            f" splits {s.num_splits:4d} final {s.final_block:2d}/{s.final_warps}"
            f"  regs {row.registers} spills {row.spills} smem {row.shared}"
            f"{' <- heuristic' if row is first else ''}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shapes", default=SHAPES)
    parser.add_argument("--norms", default="rms,layer", help="rms, layer, gelu, gelu-tanh; rms+residual")
    parser.add_argument("--cases", help="instead of shapes: names of cases, separated by semicolons")
    parser.add_argument("--dtype", default="bf16", choices=DTYPES)
    parser.add_argument("--reps", type=int, default=25)
    parser.add_argument("--best", type=int, default=6)
    parser.add_argument("--workers", type=int, default=14)
    parser.add_argument("--out", type=Path, default=Path("tune.json"))
    parser.add_argument("--append", action="store_true", help="to the file; targets in it are replaced")
    args = parser.parse_args()
    flush = flush_buffer()
    data = Data(meta(), ())
    if args.append and args.out.exists():
        data = read(args.out).merged(data)
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(args.workers, mp_context=context) as pool:
        submit = functools.cache(functools.partial(pool.submit, _warm))
        for work in ahead(AHEAD, (compiling(target, submit) for target in targets(args))):
            print(f"[{work.target.name}]", file=sys.stderr, flush=True)
            found = tune(work, args.reps, flush)
            report(found, args.best)
            data = data.merged(Data(meta(), (found,)))
            write(args.out, data)


def ahead(count: int, items: Iterator[Compiling]) -> Iterator[Compiling]:
    """The same, so many begun before each is handed on: the processors compile while the GPU is timing."""
    begun = collections.deque(itertools.islice(items, count))
    while begun:
        begun.extend(itertools.islice(items, 1))
        yield begun.popleft()


def meta() -> dict[str, Any]:
    """What the figures depend on."""
    return {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "date": datetime.date.today().isoformat(),
        "source": source_hash(),
        "device_info": dataclasses.asdict(device_info(torch.device("cuda"))),
    }


def targets(args: argparse.Namespace) -> Iterator[Target]:
    dtype = DTYPES[args.dtype]
    for name in args.cases.split(";") if args.cases else ():
        yield from case_targets(name, dtype)
    for shape in args.shapes.split(",") if not args.cases else ():
        rows, cols = map(int, shape.split("x"))
        for norm in args.norms.split(","):
            yield norm_target(norm, rows, cols, dtype)


if __name__ == "__main__":
    main()
