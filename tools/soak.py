"""A long training with mixorder, compared with eager: random batch sizes, CUDA graphs, memory watched.

    python tools/soak.py                       # 2,000 steps on a GPU
    python tools/soak.py --device interpreter  # a few small ones without

Two copies of a small transformer train on the same batches, one compiled with mixorder and
symbolic batch sizes, one eager. Checks: the losses are equal within --tolerance at every step, and fall.
After the warm-up, in which every batch size occurs several times, nothing is compiled and no memory grows:
PyTorch's, the device's (no other process may use it), the process's. Prints a summary, and writes
it to --out as JSON. Exit status: 0, or 1 with a list of failed checks.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import functools
import json
import math
import os
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from lab import arguments
from support.compilers import how
from torch import Tensor, nn

import mixorder  # noqa: F401  registers its options
from mixorder.demo_model import Transformer
from mixorder.report import RegionRecord, collect

LEARNING_RATE, MOMENTUM = 0.02, 0.9
MIB = 2**20


@dataclasses.dataclass(frozen=True)
class Size:
    """Of the model and of a batch: `most` samples at most, of `tokens` tokens."""

    layers: int
    width: int
    tokens: int
    most: int


FULL, SMALL = Size(4, 512, 48, 64), Size(1, 24, 3, 6)


@dataclasses.dataclass(frozen=True)
class Memory:
    """MiB: PyTorch's tensors, its reserved memory, the device's used memory, the process's resident set."""

    allocated: float
    reserved: float
    device: float
    process: float


WARMUP = 6  # steps per size; CUDA graphs of all sizes are recorded in four (H200)


@dataclasses.dataclass(frozen=True)
class Growth:
    """MiB that each may grow after the warm-up; a leak of 16 KiB a step is more in 2,000 steps."""

    allocated: float = 16
    reserved: float = 64
    device: float = 64
    process: float = 96


@dataclasses.dataclass
class Record:
    """Results of a training. `memory` has one entry per check, the first at the end of the warm-up."""

    wanted: int
    steps: int = 0
    warmup: int = 0
    seconds: float = 0.0
    regions: int = 0
    compiles_after_warmup: int = 0
    losses: list[tuple[float, float]] = dataclasses.field(default_factory=list)
    memory: list[Memory] = dataclasses.field(default_factory=list)

    @property
    def worst(self) -> float:
        """The largest relative difference between the losses; nan if a loss is nan."""
        found = [abs(a - b) / max(abs(b), 1e-12) for a, b in self.losses]
        return max(found) if found and all(map(math.isfinite, found)) else math.nan

    @property
    def fell(self) -> tuple[float, float]:
        """mixorder's mean loss at the beginning and at the end."""
        ours = [loss for loss, _ in self.losses] or [math.inf]
        window = max(1, min(20, len(ours) // 2))
        return sum(ours[:window]) / window, sum(ours[-window:]) / window

    @property
    def grown(self) -> Memory:
        """How much more there was at any later check than at the first."""
        first, *later = self.memory
        names = [f.name for f in dataclasses.fields(Memory)]
        most = {n: max((getattr(m, n) for m in later), default=getattr(first, n)) for n in names}
        return Memory(**{n: most[n] - getattr(first, n) for n in names})


def problems(record: Record, tolerance: float, limits: Growth) -> list[str]:
    """The failed checks, as text."""
    found = []
    if record.steps < record.wanted:
        found.append(f"only {record.steps} of {record.wanted} steps in the time there was")
    if not record.regions:
        found.append("mixorder fused nothing")
    if not record.losses or not record.worst <= tolerance:
        found.append(f"losses differ by {record.worst:.2e}, more than {tolerance:.0e}")
    if not record.fell[1] < record.fell[0]:
        found.append("the loss did not fall")
    if record.compiles_after_warmup:
        found.append(f"{record.compiles_after_warmup} graphs were compiled after the warm-up")
    if not record.memory:
        found.append("the warm-up did not end")
    else:
        for limit in dataclasses.fields(Growth):
            grown, allowed = getattr(record.grown, limit.name), getattr(limits, limit.name)
            if grown > allowed:
                found.append(f"memory grew: {limit.name} by {grown:.1f} MiB, more than {allowed} MiB")
    return found


class Learner:
    """A copy of the model, its compiled or eager form, and its optimizer."""

    def __init__(self, model: nn.Module, compile: Callable[..., Any]) -> None:
        self.model = copy.deepcopy(model)
        self.loss = compile(lambda x, y: nn.functional.mse_loss(self.model(x), y))
        self.optimizer = torch.optim.SGD(self.model.parameters(), LEARNING_RATE, MOMENTUM)

    def step(self, x: Tensor, y: Tensor) -> Tensor:
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.loss(x, y)
        loss.backward()
        self.optimizer.step()
        return loss.detach().clone()


def compiler(device: str, cudagraphs: bool) -> Callable[..., Any]:
    """mixorder, with symbolic sizes; strict, so that a bug raises."""
    return functools.partial(torch.compile, **how(device, True, **{"triton.cudagraphs": cudagraphs}))


def batch_sizes(seed: int, count: int, most: int, steps: int) -> Iterator[int]:
    """Random choices from `count` sizes; first, each size occurs three times."""
    draw = random.Random(seed)
    sizes = draw.sample(range(1, most + 1), min(count, most))
    first = sizes * 3
    draw.shuffle(first)
    yield from first[:steps]
    for _ in range(steps - len(first)):
        yield draw.choice(sizes)


def memory(device: str) -> Memory:
    process = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    if device != "cuda":
        return Memory(0.0, 0.0, 0.0, process / MIB)
    free, total = torch.cuda.mem_get_info()
    found = (torch.cuda.memory_allocated(), torch.cuda.memory_reserved(), total - free, process)
    return Memory(*(n / MIB for n in found))


def train(args: argparse.Namespace) -> Record:
    place, size = "cuda" if args.device == "cuda" else "cpu", FULL if args.device == "cuda" else SMALL
    model = Transformer(size.layers, size.width, args.norm).to(place)
    teacher = Transformer(1, size.width, args.norm).to(place)
    ours = Learner(model, compiler(args.device, args.cudagraphs))
    eager = Learner(model, lambda function: function)
    generator = torch.Generator(place).manual_seed(args.seed)
    record, started = Record(args.steps, warmup=min(WARMUP * args.sizes, args.steps)), time.monotonic()
    pending: list[tuple[Tensor, Tensor]] = []
    compiled_by_then = 0
    with collect() as regions:
        for samples in batch_sizes(args.seed, args.sizes, size.most, args.steps):
            if time.monotonic() - started > args.time_box:
                break
            x = torch.randn(samples, size.tokens, size.width, generator=generator, device=place)
            with torch.no_grad():
                y = teacher(x).tanh()
            if samples > 1:  # torch makes a graph of its own for one sample
                torch._dynamo.mark_dynamic(x, 0)
                torch._dynamo.mark_dynamic(y, 0)
            torch.compiler.cudagraph_mark_step_begin()
            pending.append((ours.step(x, y), eager.step(x, y)))
            record.steps += 1
            warm = record.steps >= record.warmup
            if record.steps == record.warmup or (warm and record.steps % args.check_every == 0):
                record.losses += [(float(a), float(b)) for a, b in pending]
                pending.clear()
                del x, y
                record.memory.append(memory(args.device))
                if len(record.memory) == 1:
                    compiled_by_then = graphs_compiled()
                print(f"{record.steps}: {record.losses[-1]}, {record.memory[-1]}", flush=True)
    record.losses += [(float(a), float(b)) for a, b in pending]
    record.seconds = time.monotonic() - started
    record.regions = sum(isinstance(r, RegionRecord) for r in regions)
    record.compiles_after_warmup = graphs_compiled() - compiled_by_then if record.memory else 0
    return record


def graphs_compiled() -> int:
    from torch._dynamo.utils import counters

    return counters["stats"]["unique_graphs"]


def summary(record: Record, found: Sequence[str]) -> str:
    lines = [f"{record.steps} steps in {record.seconds:.0f} s, {record.regions} regions fused"]
    if record.losses:
        first, last = record.fell
        lines.append(f"loss {first:.5f} -> {last:.5f}; largest relative difference {record.worst:.2e}")
    if record.memory:
        lines.append(f"after {record.warmup} steps: {record.memory[0]} MiB; grown by {record.grown}")
    return "\n".join(
        [*lines, *(f"FAILED: {problem}" for problem in found)] + ([] if found else ["as wanted"])
    )


def parsed(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = arguments.parser(__doc__)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--sizes", type=int, default=24, help="how many different batch sizes there are")
    parser.add_argument("--norm", choices=("layer", "rms", "hf"), default="layer")
    parser.add_argument("--no-cudagraphs", dest="cudagraphs", action="store_false")
    parser.add_argument(
        "--check-every", type=int, default=50, help="steps from one look at the memory to the next"
    )
    parser.add_argument("--tolerance", type=float, default=1e-3, help="of the losses, relative")
    parser.add_argument("--time-box", type=float, default=420, help="seconds")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", choices=("cuda", "interpreter"), default="cuda")
    parser.add_argument("--out", type=Path, help="a file for the record, as JSON")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = parsed(argv)
    record = train(args)
    found = problems(record, args.tolerance, Growth())
    if args.out is not None:
        args.out.write_text(json.dumps({**dataclasses.asdict(record), "problems": found}))
    print(summary(record, found))
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
