"""A small transformer, ways to distribute it over processes, and its gradients in float64 on one."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
HEAD_DIM = 64 if DEVICE == "cuda" else 8


@dataclasses.dataclass(frozen=True)
class Sizes:
    """`batch` is that of all processes together."""

    layers: int
    dim: int
    batch: int
    tokens: int
    vocabulary: int


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


@functools.cache
def mesh() -> Any:
    """All processes in a row."""
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh(DEVICE, (dist.get_world_size(),))


def alone(model: Model, how: Compile) -> nn.Module:
    for piece in model.pieces:
        piece.compile(**how)
    return model


def ddp(model: Model, how: Compile) -> nn.Module:
    from torch.nn.parallel import DistributedDataParallel

    return DistributedDataParallel(alone(model, how))


def fsdp(model: Model, how: Compile) -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    alone(model, how)
    for piece in [*model.pieces, model]:
        fully_shard(piece, mesh=mesh())
    return model


def sequence_parallel(model: Model, how: Compile) -> nn.Module:
    """Tensor parallel, and norms on each process's part of the tokens."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    gathered = functools.partial(
        PrepareModuleInput, input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)
    )
    ends = {
        "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "tail.norm": SequenceParallel(),
        "tail.head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
    }
    norms = {name: SequenceParallel() for name in ("norm1", "norm2")}
    parallelize_module(model, mesh(), ends)
    # A collective in flight is a tensor of another class. With it AOTAutograd fails in the backward of what
    # is compiled (torch 2.13, with or without mixorder): an operator waits for it.
    model.embedding.register_forward_hook(lambda module, inputs, output: output * 1)
    plan = {**norms, "attention": gathered(), "mlp": gathered()}
    return products_in_parallel(model, how, plan, RowwiseParallel(output_layouts=Shard(1)))


def products_in_parallel(
    model: Model, how: Compile, plan: dict[str, Any] | None = None, last: Any = None
) -> nn.Module:
    """Tensor parallel: products in columns, then in rows, `last`; all else on every process, or by `plan`."""
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    columns = ("attention.q", "attention.k", "attention.v", "mlp.up")
    rows = ("attention.out", "mlp.down")
    products = {name: ColwiseParallel() for name in columns}
    products |= {name: last or RowwiseParallel() for name in rows}
    for block in model.blocks:
        parallelize_module(block, mesh(), {**(plan or {}), **products})
    return alone(model, how)


WAYS: dict[str, Callable[[Model, Compile], nn.Module]] = {
    "ddp": ddp,
    "fsdp": fsdp,
    "tp": products_in_parallel,
    "sp": sequence_parallel,
}


# Its gradients.


def batch_of(sizes: Sizes, device: torch.device) -> tuple[Tensor, Tensor]:
    """The whole batch, the same on every process: tokens, and the ones to predict."""
    draw = torch.Generator().manual_seed(1)
    shape = (sizes.batch, sizes.tokens + 1)
    tokens = torch.randint(sizes.vocabulary, shape, generator=draw).to(device)
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def exact(sizes: Sizes, device: torch.device, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """From eager, in float64, on this process alone; of parameters that `dtype` has rounded."""
    model = Model(sizes).to(device, dtype).double()
    tokens, targets = batch_of(sizes, device)
    F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten()).backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def whole(grad: Tensor | None) -> Tensor:
    """All shards of a gradient; a collective."""
    from torch.distributed.tensor import DTensor

    assert grad is not None
    return grad.full_tensor() if isinstance(grad, DTensor) else grad
