"""Train a small transformer on several processes, stock and with mixorder: gradients and step times.

Run it with torchrun, one process per GPU (NCCL), or without GPUs (gloo; small, kernels interpreted):

    torchrun --nproc_per_node=2 tools/distributed.py

Ways: `ddp` (the batch is cut), `fsdp` (fully_shard; the batch is cut, parameters are sharded), `tp` (tensor
and sequence parallel by DTensor: norms replicated, their activations sharded over the sequence). Everything
between processes is torch's own. Gradients are compared, whole, with those of eager float64 on one process,
and with those of the same compile without distribution. Rank 0 prints a table; --out gets it as JSON.
Exit status: 0; 1 if a gradient is off, or no region was fused; 2 without torchrun.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
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
from lab.compilers import how
from lab.errors import largest_error
from lab.launches import marked
from lab.tables import table
from torch import Tensor, nn

from mixorder.options import Options

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
HEAD_DIM = 8 if not GPU else 64
ALLOWED = 2e-5  # of a gradient in fp32, against float64; TF32 is off


@dataclasses.dataclass(frozen=True)
class Sizes:
    """`batch` is that of all processes together."""

    layers: int
    dim: int
    batch: int
    tokens: int
    vocabulary: int


CHECKED = Sizes(2, 512, 8, 256, 1024) if GPU else Sizes(1, 16, 4, 8, 24)
TIMED = Sizes(8, 2048, 8, 2048, 32000)


# The model: what compiles as a piece is a module of its own, as in torchtitan.


class Attention(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(dim, dim, bias=False) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, _ = x.shape
        q, k, v = (f(x).view(batch, tokens, -1, HEAD_DIM).transpose(1, 2) for f in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(batch, tokens, -1))


class MLP(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(dim, 4 * dim, bias=False), nn.Linear(4 * dim, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.up(x)))


class Block(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.RMSNorm(dim, eps=1e-6)
        self.attention, self.mlp = Attention(dim), MLP(dim)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Tail(nn.Module):
    def __init__(self, dim: int, vocabulary: int) -> None:
        super().__init__()
        self.norm, self.head = nn.RMSNorm(dim, eps=1e-6), nn.Linear(dim, vocabulary, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(x))


class Model(nn.Module):
    """Tokens (batch, tokens) in, logits out; parameters from a seed."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(sizes.vocabulary, sizes.dim)
        self.blocks = nn.ModuleList(Block(sizes.dim) for _ in range(sizes.layers))
        self.tail = Tail(sizes.dim, sizes.vocabulary)
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                if "norm" in name:  # ones would hide an error
                    parameter.add_(0.1 * torch.randn_like(parameter))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.tail(x)

    @property
    def pieces(self) -> list[nn.Module]:
        """What is compiled and sharded one by one."""
        return [*self.blocks, self.tail]


Compile = dict[str, Any]  # the arguments of torch.compile


# The ways to distribute it. Each takes a model and gives what to call.


def alone(model: Model, how: Compile) -> nn.Module:
    for piece in model.pieces:
        piece.compile(**how)
    return model


def ddp(model: Model, how: Compile) -> nn.Module:
    from torch.nn.parallel import DistributedDataParallel

    return DistributedDataParallel(alone(model, how))


def fsdp(model: Model, how: Compile) -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(DEVICE, (dist.get_world_size(),))
    alone(model, how)
    for piece in model.pieces:
        fully_shard(piece, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def tp(model: Model, how: Compile) -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    mesh = init_device_mesh(DEVICE, (dist.get_world_size(),))
    gathered = functools.partial(
        PrepareModuleInput, input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)
    )
    ends = {
        "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "tail.norm": SequenceParallel(),
        "tail.head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
    }
    plan = {
        "norm1": SequenceParallel(),
        "attention": gathered(),
        **{f"attention.{name}": ColwiseParallel() for name in "qkv"},
        "attention.out": RowwiseParallel(output_layouts=Shard(1)),
        "norm2": SequenceParallel(),
        "mlp": gathered(),
        "mlp.up": ColwiseParallel(),
        "mlp.down": RowwiseParallel(output_layouts=Shard(1)),
    }
    parallelize_module(model, mesh, ends)
    # A collective in flight is a tensor of another class. With it AOTAutograd fails in the backward of what
    # is compiled (torch 2.13, with or without mixorder): an operator waits for it.
    model.embedding.register_forward_hook(lambda module, inputs, output: output * 1)
    for block in model.blocks:
        parallelize_module(block, mesh, plan)
    return alone(model, how)


WAYS: dict[str, Callable[[Model, Compile], nn.Module]] = {"ddp": ddp, "fsdp": fsdp, "tp": tp}
CUT = ("ddp", "fsdp")  # each process has its part of the batch


# Gradients.


def batch_of(sizes: Sizes, device: torch.device) -> tuple[Tensor, Tensor]:
    """The whole batch, the same on every process: tokens, and the ones to predict."""
    draw = torch.Generator().manual_seed(1)
    shape = (sizes.batch, sizes.tokens + 1)
    tokens = torch.randint(sizes.vocabulary, shape, generator=draw).to(device)
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


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
    from torch.distributed.tensor import DTensor

    loss_of(run, batch).backward()
    found = {}
    for name, parameter in model.named_parameters():
        grad = parameter.grad
        assert grad is not None, name
        found[name] = (grad.full_tensor() if isinstance(grad, DTensor) else grad).detach().clone()
    return found


def exact(sizes: Sizes, device: torch.device) -> dict[str, Tensor]:
    """From eager, in float64, on this process alone."""
    model = copy.deepcopy(Model(sizes)).to(device).double()
    logits = model(batch_of(sizes, device)[0])
    F.cross_entropy(logits.flatten(0, 1), batch_of(sizes, device)[1].flatten()).backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def off(found: dict[str, Tensor], reference: dict[str, Tensor]) -> float:
    return largest_error((found[name], exact.double()) for name, exact in reference.items())


@dataclasses.dataclass
class Row:
    """What one way gave: errors against float64 of stock and ours, ours against the same on one process;
    regions fused on this rank; milliseconds of a step, stock and ours, None where they were not timed."""

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

    whole = batch_of(CHECKED, device)
    truth = exact(CHECKED, device)

    def run(make: Callable[[Model, Compile], nn.Module], mixorder: bool, batch: Any) -> dict[str, Tensor]:
        torch._dynamo.reset()
        model = Model(CHECKED).to(device)
        return gradients(model, make(model, how(DEVICE, mixorder)), batch)

    stock = run(WAYS[way], False, part_of(way, whole))
    with collect() as records:
        ours = run(WAYS[way], True, part_of(way, whole))
    single = run(alone, True, whole)
    fused = sum(isinstance(record, RegionRecord) for record in records)
    return Row(way, off(stock, truth), off(ours, truth), off(ours, single), fused)


# Times.


def timed(way: str, mixorder: bool, steps: int, device: torch.device) -> float:
    """Median milliseconds of forward, backward and AdamW in bf16, of the slowest process."""
    torch._dynamo.reset()
    model = Model(TIMED).to(device, torch.bfloat16)
    run, batch = (
        WAYS[way](model, how(DEVICE, mixorder, min_numel=Options().min_numel)),
        part_of(way, batch_of(TIMED, device)),
    )
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
