"""Ranks of different sizes: gradients and the order of collectives, stock and with mixorder.

    python tools/uneven.py                    # two GPUs, NCCL
    python tools/uneven.py --backend gloo     # two CPU processes, small, kernels interpreted

Ways: in `ddp` and `fsdp` (fully_shard) each rank has its own number of samples. In `tp` (tensor parallel,
norms on whole activations) and `sp` (norms on halves of the tokens) both ranks have the same number.
`graph:...` are programs of support/ranks.py, whose collectives are inside the compiled graph. `fuse`: which
ranks fuse: the larger one (of equal ones, the second) or both. Gradients are compared with eager float64
on one process with the whole batch, and with those of the same way without mixorder; names and shapes of a
step's collectives are read from a profile. A row is printed as soon as both ranks have it. Processes that do
not end in time are killed.
Exit status: 0; 1 if a result is wrong, the order of collectives is not stock's, or nothing was fused where
it should be; 3 if not all rows were run.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import functools
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from lab import arguments
from lab.parallel import WAYS, Model, Sizes, batch_of, exact, products_in_parallel, tp, whole
from lab.processes import write_whole
from lab.tables import head, line
from support.compilers import how, multiprocessors
from support.ranks import PROGRAMS, RANKS, Group, Program, off
from torch import Tensor

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
ALLOWED = {"fp32": 2e-5, "bf16": 5e-2}  # of a gradient, against float64; TF32 is off
WORSE = 1.5  # allowed factor between mixorder's and stock's errors, where they are more than rounding in fp32
STUCK = 60  # seconds after which a collective that no other rank joins is an error
NONE = 2**40  # a min_numel with which nothing is fused
IN_GRAPH = ("same_shape", "three", "hooks", "shards", "sequence_parallel", "experts")


@dataclasses.dataclass(frozen=True)
class Scale:
    """`batches`: samples of each rank; `rows` and `columns`: of programs."""

    sizes: Sizes
    batches: tuple[int, int]
    rows: tuple[int, int]
    columns: int


SCALES = {
    "nccl": Scale(Sizes(1, 512, 8, 256, 1024), (2, 6), (2048, 4096), 512),
    "gloo": Scale(Sizes(1, 16, 4, 8, 24), (1, 3), (100, 200), 16),
}


@dataclasses.dataclass(frozen=True)
class Job:
    """One row of the table: what it runs."""

    way: str
    dtype: str
    fuse: str  # "larger" or "both"

    def __str__(self) -> str:
        return f"{self.way} {self.dtype} {self.fuse}"


@dataclasses.dataclass
class Found:
    """Results of one rank: errors of stock and mixorder against float64, and of mixorder against stock."""

    size: str
    fused: int
    ordered: int  # regions declined, as they would change the order of effects
    stock: float
    ours: float
    apart: float
    same_calls: bool
    calls: int
    seconds: float


def jobs(ways: list[str], dtypes: list[str], fuse: list[str]) -> list[Job]:
    """All rows, the most important first."""
    models = [way for way in ways if not way.startswith("graph")]
    programs = [f"graph:{name}" for name in IN_GRAPH] if "graph" in ways else []
    programs += [way for way in ways if way.startswith("graph:")]
    found = [Job(way, dtype, fuse[0]) for dtype in dtypes for way in models]
    found += [Job(way, "fp32", fuse[0]) for way in programs]
    return found + [Job(way, dtypes[0], other) for other in fuse[1:] for way in models]


# One rank.


class Rank:
    """One process: its rank and settings, and its cached results."""

    def __init__(self, rank: int, backend: str) -> None:
        self.rank, self.backend, self.scale = rank, backend, SCALES[backend]
        self.gpu = backend == "nccl"
        self.device = torch.device("cuda", rank) if self.gpu else torch.device("cpu")
        self.stock = functools.cache(self._stock)
        self.truth = functools.cache(self._truth)
        self.exact_program = functools.cache(lambda name: self.program(name).truth())

    def found(self, job: Job) -> Found:
        """A row, as this rank has it; a collective."""
        from mixorder.errors import Decline
        from mixorder.report import collect

        started = time.perf_counter()
        stock, stock_calls = self.stock(job.way, job.dtype)
        with collect() as records:
            ours, calls = self.once(job, mixorder=True)
        declined = [r.reason.value for r in records if isinstance(r, Decline)]
        truth = self.truth(job.way, job.dtype)
        return Found(
            self.size(job.way),
            len(records) - len(declined),
            declined.count("order"),
            off(stock, truth),
            off(ours, truth),
            off(ours, tuple(t.double().cpu() for t in stock)),
            calls == stock_calls,
            sum(name.startswith("c10d::") for name, _ in calls),
            time.perf_counter() - started,
        )

    def _stock(self, way: str, dtype: str) -> tuple[tuple[Tensor, ...], list[Any]]:
        return self.once(Job(way, dtype, "both"), mixorder=False)

    def _truth(self, way: str, dtype: str) -> tuple[Tensor, ...]:
        """From eager, in float64, on this process alone."""
        if way.startswith("graph:"):
            return self.exact_program(way.partition(":")[2])[self.rank]
        return tuple(g.cpu() for g in exact(self.scale.sizes, self.device, DTYPES[dtype]).values())

    def once(self, job: Job, mixorder: bool) -> tuple[tuple[Tensor, ...], list[Any]]:
        """Results of the first step, and the collectives of the third, when DDP has its buckets."""
        torch._dynamo.reset()
        make = self.program_step if job.way.startswith("graph:") else self.model_step
        step = make(job, mixorder)
        results = tuple(t.detach().clone() for t in step())
        step()
        with called() as calls:
            step()
        return results, calls

    # Models.

    def min_numel(self, job: Job) -> int:
        return 0 if job.fuse == "both" else (NONE, 0)[self.rank]

    def size(self, way: str) -> str:
        sizes = self.scale.sizes
        if way.startswith("graph:"):
            return f"{self.program(way).rows[self.rank]} rows"
        batch = self.scale.batches[self.rank] if way in ("ddp", "fsdp") else sizes.batch
        return f"{batch} x {sizes.tokens // RANKS if way == 'sp' else sizes.tokens}"

    def model_step(self, job: Job, mixorder: bool) -> Callable[[], Iterator[Tensor]]:
        """Whole gradients of the parameters at every call; a collective."""
        sizes = self.scale.sizes
        model = Model(sizes).to(self.device, DTYPES[job.dtype])
        options = how(self.device.type, mixorder, self.min_numel(job))
        run = {**WAYS, "tp": products_in_parallel, "sp": tp}[job.way](model, options)
        tokens, targets = batch_of(sizes, self.device)
        share = 1.0 / targets.numel()
        if job.way in ("ddp", "fsdp"):  # which average over ranks
            share *= RANKS
            tokens, targets = (t.split(self.scale.batches)[self.rank] for t in (tokens, targets))

        def step() -> Iterator[Tensor]:
            model.zero_grad(set_to_none=True)
            logits = run(tokens).float().flatten(0, 1)
            (F.cross_entropy(logits, targets.flatten(), reduction="sum") * share).backward()
            return (whole(p.grad) for p in model.parameters())

        return step

    # Programs.

    def program(self, way: str) -> Program:
        program = PROGRAMS[way.rpartition(":")[2]]
        small, large = self.scale.rows
        rows = (small, large) if len(set(program.rows)) > 1 else (small, small)
        return dataclasses.replace(program, rows=rows, columns=self.scale.columns)

    def program_step(self, job: Job, mixorder: bool) -> Callable[[], tuple[Tensor, ...]]:
        program = self.program(job.way)
        arguments = tuple(t.to(self.device) for t in program.arguments(self.rank))
        least = program.min_numel(self.rank) if job.fuse == "larger" else 0
        options = how(self.device.type, mixorder, least)
        group = Group(dist.group.WORLD.group_name)
        compiled: list[Any] = []

        def once(function: Callable[..., Any]) -> Callable[..., Any]:
            if not compiled:
                compiled.append(torch.compile(function, dynamic=False, fullgraph=True, **options))
            return compiled[0]

        return lambda: program.run(group, arguments, once)


class called:
    """The collectives that this process calls, in order: names, and shapes of what functional ones get."""

    def __enter__(self) -> list[Any]:
        activities = [torch.profiler.ProfilerActivity.CPU]
        self.profile = torch.profiler.profile(activities=activities, record_shapes=True)
        self.calls: list[Any] = []
        self.profile.__enter__()
        return self.calls

    def __exit__(self, *error: Any) -> None:
        self.profile.__exit__(*error)
        events = [e for e in self.profile.events() if e.name.startswith(("c10d::", "_c10d_functional::"))]
        for event in sorted(events, key=lambda e: e.time_range.start):
            if "wait" not in event.name:
                # Whether a functional one is done in place is for Inductor to choose.
                self.calls.append((event.name.rstrip("_"), str(event.input_shapes)))


def rank_main(rank: int, folder: Path, backend: str, todo: list[Job], deadline: float) -> None:
    """Run all rows on one rank; each is saved as soon as it ends."""
    me = Rank(rank, backend)
    if me.gpu:
        torch.cuda.set_device(me.device)
        torch.backends.cuda.matmul.allow_tf32 = False
    else:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        torch.set_num_threads(1)
    timeout = datetime.timedelta(seconds=STUCK)
    store = dist.FileStore(str(folder / "store"), RANKS)
    device = {"device_id": me.device} if me.gpu else {}
    dist.init_process_group(backend, store=store, rank=rank, world_size=RANKS, timeout=timeout, **device)
    with contextlib.nullcontext() if me.gpu else multiprocessors(16):
        for number, job in enumerate(todo):
            # All ranks go on, or none.
            late = torch.tensor(float(time.time() > deadline), device=me.device)
            dist.all_reduce(late, dist.ReduceOp.MAX)
            if late:
                break
            content = json.dumps(dataclasses.asdict(me.found(job)))
            write_whole(folder / f"{number}-{rank}.json", content)
    dist.destroy_process_group()


# The table.


HEAD = ("way", "model", "dtype", "sizes", "fuse", "regions")
HEAD += ("error, stock", "error, mixorder", "against stock", "same collectives", "right")


def right(job: Job, found: list[Found]) -> bool:
    allowed = ALLOWED[job.dtype]
    ours, stock = max(f.ours for f in found), max(f.stock for f in found)
    exact = stock < allowed and ours < allowed and (ours < ALLOWED["fp32"] or ours <= WORSE * stock)
    taken = [f.fused + f.ordered > 0 for f in found]
    fused = all(taken) if job.fuse == "both" else sum(taken) == 1
    in_graph = job.way.startswith("graph:")  # where no rank may fuse if that changes the order
    return exact and all(f.same_calls and f.calls for f in found) and (fused or in_graph and any(taken))


def cells(job: Job, found: list[Found]) -> list[str]:
    """A line of the table."""
    fused = ", ".join(f"{f.fused}" + f" (order: {f.ordered})" * bool(f.ordered) for f in found)
    return [
        job.way,
        "a norm and its MLP" if job.way.startswith("graph:") else "LayerNorm + RMSNorm block",
        job.dtype,
        ", ".join(f.size for f in found),
        job.fuse,
        fused,
        *(f"{max(getattr(f, name) for f in found):.1e}" for name in ("stock", "ours", "apart")),
        f"{'yes' if all(f.same_calls for f in found) else 'NO'}, {found[0].calls}",
        "yes" if right(job, found) else "NO",
    ]


def watch(folder: Path, todo: list[Job], ranks: Any, end: float) -> tuple[list[bool], str]:
    """Print rows as they come, until the processes end or time out. Returns whether each row was right, and
    a message on other errors."""
    rights: list[bool] = []
    trouble, running = "", True
    print(head(HEAD), flush=True)
    while running and not trouble:
        try:
            running = not ranks.join(timeout=0.5)
        except (mp.ProcessExitedException, mp.ProcessRaisedException) as error:
            trouble = str(error)
        if running and time.time() > end:
            trouble = "out of time: the processes are killed"
        while len(rights) < len(todo):
            paths = [folder / f"{len(rights)}-{rank}.json" for rank in range(RANKS)]
            if not all(path.exists() for path in paths):
                break
            found, job = [Found(**json.loads(path.read_text())) for path in paths], todo[len(rights)]
            rights.append(right(job, found))
            print(line(cells(job, found)), flush=True)
            print(f"{job}: {max(f.seconds for f in found):.0f} s", file=sys.stderr, flush=True)
    return rights, trouble


def main() -> int:
    parser = arguments.parser(__doc__)
    gpus = torch.cuda.device_count()
    parser.add_argument("--backend", choices=SCALES, default="nccl" if gpus >= RANKS else "gloo")
    parser.add_argument("--ways", default="ddp,fsdp,tp,sp,graph", help="of %(default)s; or graph:PROGRAM")
    parser.add_argument("--dtypes", default="fp32,bf16", help="of %(default)s, for all ways but graph")
    parser.add_argument(
        "--fuse", default="larger,both", help="of %(default)s; the second with the first dtype alone"
    )
    parser.add_argument("--limit", type=float, default=225, help="seconds until processes are killed")
    args = parser.parse_args()
    if args.backend == "gloo":
        os.environ["CUDA_VISIBLE_DEVICES"], os.environ["TRITON_INTERPRET"] = "", "1"
    elif gpus < RANKS:
        parser.error(f"{gpus} GPUs, {RANKS} needed")
    todo = jobs(args.ways.split(","), args.dtypes.split(","), args.fuse.split(","))
    started = time.time()
    with tempfile.TemporaryDirectory() as name:
        given = (Path(name), args.backend, todo, started + 0.85 * args.limit)
        ranks = mp.spawn(rank_main, given, nprocs=RANKS, join=False)
        try:
            rights, trouble = watch(Path(name), todo, ranks, started + args.limit)
        finally:
            for process in ranks.processes:
                process.kill()
    print(f"\n{RANKS} processes, {args.backend}, torch {torch.__version__}, {time.time() - started:.0f} s")
    for text in filter(None, (trouble, *(f"not run: {job}" for job in todo[len(rights) :]))):
        print(text, file=sys.stderr)
    return 1 if not all(rights) else 3 if trouble or len(rights) < len(todo) else 0


if __name__ == "__main__":
    sys.exit(main())
