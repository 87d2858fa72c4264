"""The model that the demo trains, and its measurements.

A stack of pre-norm transformer blocks with a choice of norm; its gradients, their errors against
float64, and on a GPU the times and kernels of a step. Prints nothing, and is independent of the command line.
"""

from __future__ import annotations

import copy
import dataclasses
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

HEAD_DIM = 64
WARMUP_STEPS, TIMED_STEPS = 10, 50


class HuggingFaceRMSNorm(nn.Module):
    """RMSNorm as the Hugging Face models write it: float32 inside, cast back, then the weight."""

    def __init__(self, dim: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        # Not plain float32: the float64 reference must not be rounded here.
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * wide.to(x.dtype)


NORMS: dict[str, type[nn.Module]] = {
    "layer": nn.LayerNorm,
    "rms": nn.RMSNorm,
    "hf": HuggingFaceRMSNorm,
}


class Attention(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.heads = _num_heads(dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        batch, seq, dim = x.shape
        shape = (batch, seq, 3, self.heads, dim // self.heads)
        q, k, v = self.qkv(x).view(shape).permute(2, 0, 3, 1, 4).unbind()
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(batch, seq, dim))


class Block(nn.Module):
    def __init__(self, dim: int, norm: type[nn.Module]) -> None:
        super().__init__()
        self.norm1, self.norm2 = norm(dim), norm(dim)
        self.attention = Attention(dim)
        self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Transformer(nn.Module):
    """`layers` blocks and a final norm; parameters are drawn from a fixed seed."""

    def __init__(self, layers: int, dim: int, norm: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.Sequential(*(Block(dim, NORMS[norm]) for _ in range(layers)))
        self.norm = NORMS[norm](dim)
        kinds: Any = tuple(NORMS.values())
        with torch.no_grad():
            # Weights of one and biases of zero would hide an error in a norm's affine part.
            for module in self.modules():
                if isinstance(module, kinds):
                    for parameter in module.parameters():
                        parameter.add_(0.1 * torch.randn_like(parameter))

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.blocks(x))


def _num_heads(dim: int) -> int:
    """The largest number of heads that divides `dim` and makes none narrower than `HEAD_DIM`."""
    most = max(1, dim // HEAD_DIM)
    return next(n for n in range(most, 0, -1) if dim % n == 0)


@dataclasses.dataclass(frozen=True)
class Problem:
    """The module to train, its input and the gradient of its output, on one device."""

    module: nn.Module
    x: Tensor
    dy: Tensor

    @classmethod
    def create(cls, layers: int, shape: tuple[int, int, int], norm: str, dtype: str, device: str) -> Problem:
        place = {"device": device, "dtype": getattr(torch, dtype)}
        module = Transformer(layers, shape[-1], norm).to(**place)
        x, dy = (torch.randn(shape).to(**place) for _ in range(2))
        return cls(module, x.requires_grad_(), dy)

    def gradients(self, function: Callable[[Tensor], Tensor]) -> tuple[Tensor, ...]:
        """Gradients of the input and of each parameter, in the module's order."""
        return self.backward(function(self.x))

    def backward(self, y: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.grad(y, [self.x, *self.module.parameters()], self.dy)

    def exact_gradients(self) -> tuple[Tensor, ...]:
        """The same gradients from eager in float64."""
        x = self.x.detach().double().requires_grad_()
        exact = Problem(copy.deepcopy(self.module).double(), x, self.dy.double())
        return exact.gradients(exact.module)

    def errors(self, grads: Sequence[Tensor], exact: Sequence[Tensor]) -> dict[str, float]:
        """||g - ref|| / ||ref|| of each gradient, by name."""
        names = ["input", *(name for name, _ in self.module.named_parameters())]
        triples = zip(names, grads, exact, strict=True)
        return {name: float((g.double() - ref).norm() / ref.norm()) for name, g, ref in triples}

    def times_ms(self, compiled: Callable[[Tensor], Tensor]) -> tuple[float, float]:
        """Medians of the backward, and of forward and backward together, on a GPU."""
        marks = []
        for _ in range(WARMUP_STEPS + TIMED_STEPS):
            start, middle, end = (torch.cuda.Event(enable_timing=True) for _ in range(3))
            start.record()
            y = compiled(self.x)
            middle.record()
            self.backward(y)
            end.record()
            marks.append((start, middle, end))
        torch.cuda.synchronize()
        timed = marks[WARMUP_STEPS:]
        return (
            statistics.median(middle.elapsed_time(end) for _, middle, end in timed),
            statistics.median(start.elapsed_time(end) for start, _, end in timed),
        )

    def backward_kernels(self, compiled: Callable[[Tensor], Tensor]) -> tuple[str, ...]:
        """Names of the kernels that one backward launches on a GPU, without memsets and memcpys."""
        from torch.profiler import ProfilerActivity, profile

        y = compiled(self.x)
        torch.cuda.synchronize()
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
            self.backward(y)
            torch.cuda.synchronize()
        return tuple(
            event.name
            for event in profiler.events()
            if event.device_type == torch.autograd.DeviceType.CUDA
            and not event.is_user_annotation
            and not event.name.lower().startswith(("memset", "memcpy"))
        )
