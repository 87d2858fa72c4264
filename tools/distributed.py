"""Train on two processes, stock and with mixorder: gradients, the order of collectives, and step times.

    python tools/distributed.py                    # two GPUs, NCCL
    python tools/distributed.py --backend gloo     # two CPU processes, small, kernels interpreted

Ways: in `ddp` and `fsdp` (fully_shard) each rank has its own number of samples. In `tp` (tensor parallel,
norms on whole activations) and `sp` (norms on halves of the tokens) both ranks have the same number.
`graph:...` are programs of support/ranks.py, whose collectives are inside the compiled graph. All other
communication is torch's own. `fuse`: which ranks fuse: the larger one (of equal ones, the second) or both.
Gradients are compared with eager float64 on one process with the whole batch, and with those of the same way
without mixorder; names and shapes of a step's collectives are read from a profile. With --steps, training
steps of a larger model in bf16 are timed, too. Processes that do not end in time are killed.
Exit status: 0; 1 if a result is wrong, the order of collectives is not stock's, or nothing was fused where
it should be; 3 if not all rows were run.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import functools
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from lab import arguments
from lab.launches import marked
from lab.parallel import WAYS, Model, Sizes, batch_of, exact, whole
from lab.tables import head, line
from support.compilers import how, multiprocessors
from support.ranks import PROGRAMS, RANKS, Group, Program, off
from torch import Tensor

from mixorder.errors import Decline
from mixorder.options import Options
from mixorder.report import collect

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
ALLOWED = {"fp32": 2e-5, "bf16": 5e-2}  # of a gradient, against float64; TF32 is off
WORSE = 1.5  # allowed factor between mixorder's and stock's errors, where they are more than rounding in fp32
STUCK = 60  # seconds after which a collective that no other rank joins is an error
NONE = 2**40  # a min_numel with which nothing is fused
IN_GRAPH = ("same_shape", "three", "hooks", "shards", "sequence_parallel", "experts")
TIMED = Sizes(8, 2048, 8, 2048, 32000)
NOT_ALL = 3  # exit status


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
    difference: float
    same_calls: bool
    calls: int


def jobs(ways: list[str], dtypes: list[str], fuse: list[str]) -> list[Job]:
    """All rows, the most important first."""
    models = [way for way in ways if not way.startswith("graph")]
    programs = [f"graph:{name}" for name in IN_GRAPH] if "graph" in ways else []
    programs += [way for way in ways if way.startswith("graph:")]
    rows = [Job(way, dtype, fuse[0]) for dtype in dtypes for way in models]
    rows += [Job(way, "fp32", fuse[0]) for way in programs]
    return rows + [Job(way, dtypes[0], fused_ranks) for fused_ranks in fuse[1:] for way in models]


# One rank.


class Rank:
    """One process: its rank and settings, and its cached results."""

    def __init__(self, rank: int, backend: str) -> None:
        self.rank, self.scale, self.gpu = rank, SCALES[backend], backend == "nccl"
        self.device = torch.device("cuda", rank) if self.gpu else torch.device("cpu")
        self.stock = functools.cache(lambda way, dtype: self.once(Job(way, dtype, "both"), mixorder=False))
        self.truth = functools.cache(self._truth)
        self.exact_program = functools.cache(lambda way: self.program(way).truth())

    def row(self, job: Job) -> Found:
        """A row, as this rank has it; a collective."""
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
        )

    def _truth(self, way: str, dtype: str) -> tuple[Tensor, ...]:
        """From eager, in float64, on this process alone."""
        if way.startswith("graph:"):
            return self.exact_program(way)[self.rank]
        return tuple(g.cpu() for g in exact(self.scale.sizes, self.device, DTYPES[dtype]).values())

    def once(self, job: Job, mixorder: bool) -> tuple[tuple[Tensor, ...], list[Any]]:
        """Results of the first step, and the collectives of the third, when DDP has its buckets."""
        torch._dynamo.reset()
        options = how(self.device.type, mixorder, 0 if job.fuse == "both" else (NONE, 0)[self.rank])
        in_graph = job.way.startswith("graph:")
        step = self.program_step(job, options) if in_graph else self.model_step(job, options)
        results = tuple(t.detach().clone() for t in step())
        step()
        with called() as calls:
            step()
        return results, calls

    def size(self, way: str) -> str:
        sizes = self.scale.sizes
        if way.startswith("graph:"):
            return f"{self.program(way).rows[self.rank]} rows"
        batch = self.scale.batches[self.rank] if way in ("ddp", "fsdp") else sizes.batch
        return f"{batch} x {sizes.tokens // RANKS if way == 'sp' else sizes.tokens}"

    def model_step(self, job: Job, options: dict[str, Any]) -> Callable[[], Iterator[Tensor]]:
        """Whole gradients of the parameters at every call; a collective."""
        model = Model(self.scale.sizes).to(self.device, DTYPES[job.dtype])
        run = WAYS[job.way](model, options)
        loss = self.loss(job.way, self.scale.sizes, self.scale.batches)

        def step() -> Iterator[Tensor]:
            model.zero_grad(set_to_none=True)
            loss(run).backward()
            return (whole(p.grad) for p in model.parameters())

        return step

    def loss(self, way: str, sizes: Sizes, batches: Sequence[int]) -> Callable[[Any], Tensor]:
        """Of the whole batch, this rank's part of it."""
        tokens, targets = batch_of(sizes, self.device)
        share = 1.0 / targets.numel()
        if way in ("ddp", "fsdp"):  # which average over ranks
            share *= RANKS
            tokens, targets = (t.split(batches)[self.rank] for t in (tokens, targets))

        def loss(run: Any) -> Tensor:
            logits = run(tokens).float().flatten(0, 1)
            return F.cross_entropy(logits, targets.flatten(), reduction="sum") * share

        return loss

    def program(self, way: str) -> Program:
        program = PROGRAMS[way.partition(":")[2]]
        small, large = self.scale.rows
        rows = (small, large) if len(set(program.rows)) > 1 else (small, small)
        return dataclasses.replace(program, rows=rows, columns=self.scale.columns)

    def program_step(self, job: Job, options: dict[str, Any]) -> Callable[[], tuple[Tensor, ...]]:
        program = self.program(job.way)
        arguments = tuple(t.to(self.device) for t in program.arguments(self.rank))
        group = Group(dist.group.WORLD.group_name)
        compiled: list[Any] = []

        def once(function: Callable[..., Any]) -> Callable[..., Any]:
            if not compiled:
                compiled.append(torch.compile(function, dynamic=False, fullgraph=True, **options))
            return compiled[0]

        return lambda: program.run(group, arguments, once)

    def timed(self, way: str, mixorder: bool, steps: int) -> float:
        """Median milliseconds of forward, backward and AdamW in bf16, of the slowest process."""
        torch._dynamo.reset()
        model = Model(TIMED).to(self.device, torch.bfloat16)
        run = WAYS[way](model, how("cuda", mixorder, min_numel=Options().min_numel))
        loss = self.loss(way, TIMED, [TIMED.batch // RANKS] * RANKS)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

        def step() -> None:
            optimizer.zero_grad(set_to_none=True)
            loss(run).backward()
            optimizer.step()

        for _ in range(5):
            step()
        marks = [marked([step]) for _ in range(steps)]
        torch.cuda.synchronize()
        slowest = torch.tensor(statistics.median(s.elapsed_time(e) for s, e in marks), device=self.device)
        dist.all_reduce(slowest, dist.ReduceOp.MAX)
        return float(slowest)


@contextlib.contextmanager
def called() -> Iterator[list[Any]]:
    """The collectives that this process calls, in order: names, and shapes of what functional ones get."""
    calls: list[Any] = []
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, record_shapes=True) as profile:
        yield calls
    events = [e for e in profile.events() if e.name.startswith(("c10d::", "_c10d_functional::"))]
    for event in sorted(events, key=lambda e: e.time_range.start):
        if "wait" not in event.name:
            # Whether a functional one is done in place is for Inductor to choose.
            calls.append((event.name.rstrip("_"), str(event.input_shapes)))


def rank_main(rank: int, store: str, backend: str, todo: list[Job], steps: int, deadline: float) -> None:
    """Run all rows on one rank. The first one prints what all have found, and ends with the exit status."""
    me = Rank(rank, backend)
    if me.gpu:
        torch.cuda.set_device(me.device)
        torch.backends.cuda.matmul.allow_tf32 = False
    else:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        torch.set_num_threads(1)
    told = functools.partial(print, flush=True) if rank == 0 else lambda *_: None
    timeout, device = datetime.timedelta(seconds=STUCK), {"device_id": me.device} if me.gpu else {}
    dist.init_process_group(
        backend, store=dist.FileStore(store, RANKS), rank=rank, world_size=RANKS, timeout=timeout, **device
    )
    rights: list[bool] = []
    with contextlib.nullcontext() if me.gpu else multiprocessors(16):
        told(head(HEAD))
        for job in todo:
            # All ranks go on, or none.
            late = torch.tensor(float(time.time() > deadline), device=me.device)
            dist.all_reduce(late, dist.ReduceOp.MAX)
            if late:
                told(f"not run: {', '.join(map(str, todo[len(rights) :]))}")
                break
            everyone: list[Any] = [None] * RANKS
            dist.all_gather_object(everyone, me.row(job))
            rights.append(right(job, everyone))
            told(line(cells(job, everyone)))
    timed = [way for way in dict.fromkeys(job.way for job in todo) if way in WAYS] if steps and me.gpu else ()
    for way in timed:
        stock, ours = (me.timed(way, mixorder, steps) for mixorder in (False, True))
        told(f"{way}: {stock:.2f} -> {ours:.2f} ms a step")
    dist.destroy_process_group()
    sys.exit(rank == 0 and (1 if not all(rights) else NOT_ALL if len(rights) < len(todo) else 0))


# The table.


HEAD = ("way", "model", "dtype", "sizes", "fuse", "regions")
HEAD += ("error, stock", "error, mixorder", "against stock", "same collectives", "right")


def right(job: Job, rows: list[Found]) -> bool:
    allowed = ALLOWED[job.dtype]
    ours, stock = max(f.ours for f in rows), max(f.stock for f in rows)
    exact = stock < allowed and ours < allowed and (ours < ALLOWED["fp32"] or ours <= WORSE * stock)
    taken = [f.fused + f.ordered > 0 for f in rows]
    fused = all(taken) if job.fuse == "both" else sum(taken) == 1
    in_graph = job.way.startswith("graph:")  # where no rank may fuse if that changes the order
    return exact and all(f.same_calls and f.calls for f in rows) and (fused or in_graph and any(taken))


def cells(job: Job, rows: list[Found]) -> list[str]:
    """A line of the table."""
    fused = ", ".join(f"{f.fused}" + f" (order: {f.ordered})" * bool(f.ordered) for f in rows)
    return [
        job.way,
        "a norm and its MLP" if job.way.startswith("graph:") else "LayerNorm + RMSNorm block",
        job.dtype,
        ", ".join(f.size for f in rows),
        job.fuse,
        fused,
        *(f"{max(getattr(f, name) for f in rows):.1e}" for name in ("stock", "ours", "difference")),
        f"{'yes' if all(f.same_calls for f in rows) else 'NO'}, {rows[0].calls}",
        "yes" if right(job, rows) else "NO",
    ]


def main() -> int:
    parser = arguments.parser(__doc__)
    gpus = torch.cuda.device_count()
    parser.add_argument("--backend", choices=SCALES, default="nccl" if gpus >= RANKS else "gloo")
    parser.add_argument("--ways", default="ddp,fsdp,tp,sp,graph", help="of %(default)s; or graph:PROGRAM")
    parser.add_argument("--dtypes", default="fp32,bf16", help="of %(default)s, for all ways but graph")
    parser.add_argument(
        "--fuse", default="larger,both", help="of %(default)s; the second with the first dtype alone"
    )
    parser.add_argument("--steps", type=int, default=0, help="timed steps of a larger model; 0: none")
    parser.add_argument("--limit", type=float, default=225, help="seconds until processes are killed")
    args = parser.parse_args()
    if args.backend == "gloo":
        os.environ["CUDA_VISIBLE_DEVICES"], os.environ["TRITON_INTERPRET"] = "", "1"
    elif gpus < RANKS:
        parser.error(f"{gpus} GPUs, {RANKS} needed")
    todo, started = jobs(args.ways.split(","), args.dtypes.split(","), args.fuse.split(",")), time.time()
    print(f"{RANKS} processes, {args.backend}, torch {torch.__version__}\n", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        given = (f"{folder}/store", args.backend, todo, args.steps, started + 0.85 * args.limit)
        mp.set_forkserver_preload(["__main__", "torch._inductor.compile_fx"])  # imported once for all ranks
        started_by = "forkserver" if args.backend == "gloo" else "spawn"
        ranks = mp.start_processes(rank_main, given, nprocs=RANKS, join=False, start_method=started_by)
        try:
            while not ranks.join(timeout=0.5):
                if time.time() > started + args.limit:
                    print("out of time: the processes are killed", file=sys.stderr)
                    return NOT_ALL
        except mp.ProcessExitedException as error:
            return error.exit_code
        finally:
            for process in ranks.processes:
                process.kill()
    return 0


if __name__ == "__main__":
    sys.exit(main())
