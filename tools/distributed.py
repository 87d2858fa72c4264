"""Train a small transformer on several processes, stock and with mixorder: gradients and step times.

Run it with torchrun, one process per GPU (NCCL), or without GPUs (gloo; small, kernels interpreted):

    torchrun --nproc_per_node=2 tools/distributed.py

Ways: `ddp` (the batch is split), `fsdp` (fully_shard; the batch is split, parameters are sharded), `tp`
(tensor and sequence parallel by DTensor: norms replicated, their activations sharded over the sequence). All
communication is torch's own. Full gradients are compared with those of eager float64 on one process,
and with those of the same compile without distribution. Rank 0 prints a table; --out gets it as JSON.
Exit status: 0; 1 if a gradient is off, or no region was fused; 2 without torchrun.
"""

from __future__ import annotations

import dataclasses
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from lab import arguments
from lab.launches import marked
from lab.parallel import DEVICE, WAYS, Compile, Model, Sizes, alone, batch_of, exact, whole
from lab.tables import table
from support.compilers import how
from torch import Tensor, nn

from mixorder.inspection.accuracy import largest_error
from mixorder.options import Options

GPU = DEVICE == "cuda"
ALLOWED = 2e-5  # of a gradient in fp32, against float64; TF32 is off
CHECKED = Sizes(2, 512, 8, 256, 1024) if GPU else Sizes(1, 16, 4, 8, 24)
TIMED = Sizes(8, 2048, 8, 2048, 32000)
CUT = ("ddp", "fsdp")  # each process has its part of the batch


def part_of(way: str, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """This process's share."""
    if way not in CUT:
        return batch
    rank, world = dist.get_rank(), dist.get_world_size()
    return tuple(t.chunk(world)[rank] for t in batch)  # type: ignore[return-value]


def loss_of(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return F.cross_entropy(model(batch[0]).float().flatten(0, 1), batch[1].flatten())


def gradients(model: Model, run: nn.Module, batch: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
    """Whole gradients of the model's parameters, by name; a collective."""
    loss_of(run, batch).backward()
    return {name: whole(p.grad).detach().clone() for name, p in model.named_parameters()}


def off(found: dict[str, Tensor], reference: dict[str, Tensor]) -> float:
    return largest_error((found[name], true.double()) for name, true in reference.items())


@dataclasses.dataclass
class Row:
    """Results of one way: errors of stock and mixorder against float64, and of mixorder against one process;
    regions fused on this rank; milliseconds of a step, stock and mixorder, None where they were not timed."""

    way: str
    stock: float
    ours: float
    single: float
    fused: int
    stock_ms: float | None = None
    ours_ms: float | None = None

    @property
    def right(self) -> bool:
        return self.fused > 0 and max(self.stock, self.ours, self.single) < ALLOWED


def checked(way: str, device: torch.device) -> Row:
    from mixorder.report import RegionRecord, collect

    both = batch_of(CHECKED, device)
    truth = exact(CHECKED, device)

    def run(make: Callable[[Model, Compile], nn.Module], mixorder: bool, batch: Any) -> dict[str, Tensor]:
        torch._dynamo.reset()
        model = Model(CHECKED).to(device)
        return gradients(model, make(model, how(DEVICE, mixorder)), batch)

    stock = run(WAYS[way], False, part_of(way, both))
    with collect() as records:
        ours = run(WAYS[way], True, part_of(way, both))
    single = run(alone, True, both)
    fused = sum(isinstance(record, RegionRecord) for record in records)
    return Row(way, off(stock, truth), off(ours, truth), off(ours, single), fused)


# Times.


def timed(way: str, mixorder: bool, steps: int, device: torch.device) -> float:
    """Median milliseconds of forward, backward and AdamW in bf16, of the slowest process."""
    torch._dynamo.reset()
    model = Model(TIMED).to(device, torch.bfloat16)
    run = WAYS[way](model, how(DEVICE, mixorder, min_numel=Options().min_numel))
    batch = part_of(way, batch_of(TIMED, device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        loss_of(run, batch).backward()
        optimizer.step()

    for _ in range(5):
        step()
    marks = [marked([step]) for _ in range(steps)]
    torch.cuda.synchronize()
    slowest = torch.tensor(statistics.median(s.elapsed_time(e) for s, e in marks), device=device)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    return float(slowest)


# All of it.


HEAD = ("way", "regions", "error, stock", "error, mixorder", "against one process", "step, ms")


def cells(r: Row) -> list[str]:
    """A line of the table."""
    ms = "-" if r.stock_ms is None else f"{r.stock_ms:.2f} -> {r.ours_ms:.2f}"
    return [r.way, str(r.fused), *(f"{error:.1e}" for error in (r.stock, r.ours, r.single)), ms]


def main() -> int:
    parser = arguments.parser(__doc__)
    parser.add_argument("--ways", default=",".join(WAYS), help="of %(default)s")
    parser.add_argument("--steps", type=int, default=20 if GPU else 0, help="timed steps; 0: none")
    parser.add_argument("--out", type=Path, help="a folder for distributed.json")
    args = parser.parse_args()
    if "RANK" not in os.environ:
        print("run it with torchrun --nproc_per_node=2 tools/distributed.py", file=sys.stderr)
        return 2
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if GPU else torch.device("cpu")
    if GPU:
        torch.cuda.set_device(device)
    else:
        os.environ["TRITON_INTERPRET"] = "1"  # before triton is imported
    torch.backends.cuda.matmul.allow_tf32 = False
    dist.init_process_group("nccl" if GPU else "gloo")
    rank0 = dist.get_rank() == 0
    rows = []
    try:
        for way in args.ways.split(","):
            started = time.perf_counter()
            row = checked(way, device)
            if args.steps and GPU:
                row.stock_ms, row.ours_ms = (timed(way, m, args.steps, device) for m in (False, True))
            rows.append(row)
            if rank0:
                print(f"{way}: {time.perf_counter() - started:.0f} s", file=sys.stderr, flush=True)
        if rank0:
            print(f"{dist.get_world_size()} processes, torch {torch.__version__}\n")
            print(table(HEAD, map(cells, rows)), flush=True)
            if args.out:
                args.out.mkdir(parents=True, exist_ok=True)
                content = json.dumps([dataclasses.asdict(row) for row in rows], indent=1)
                (args.out / "distributed.json").write_text(content)
    finally:
        dist.destroy_process_group()
    return int(not all(row.right for row in rows))


if __name__ == "__main__":
    sys.exit(main())
