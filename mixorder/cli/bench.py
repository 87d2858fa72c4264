"""`python -m mixorder bench package.module:factory`: a model's step, stock versus mixorder, on a GPU.

Exit status: 0; 1 if the gradients differ; 2 on bad arguments or without a GPU.
"""

from __future__ import annotations

import dataclasses
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from mixorder.cli.factory import HELP, Example, add_factory, make
from mixorder.cli.parser import Parser
from mixorder.cli.values import at_least

if TYPE_CHECKING:
    from torch import Tensor

DESCRIPTION = """\
On a GPU, time the forward and backward of a model, compiled by Inductor as shipped and with mixorder. The two
alternate, so that a change of the GPU's clocks affects both alike. Times are medians. The optimizer is not
timed."""

EPILOG = f"""\
{HELP}

examples:
  python -m mixorder bench train:factory
  python -m mixorder bench train:factory --autotune     a third column, with tuned schedules

In the repository, tools/bench.py times the backward of norms, and tools/real_models.py whole models."""

STEPS = 30
NO_GPU = (
    "this torch finds no GPU (`python -m mixorder explain` needs none; `python -m mixorder doctor` says why)"
)


@dataclasses.dataclass
class Way:
    """One way to compile, and its results.

    `compile_s`: seconds of the first step, with compilation.
    `fused`: how many regions.
    `times`: milliseconds of later steps, forward and backward.
    `peak`: bytes of tensors at the peak of a step.
    `difference`: the largest of a gradient from the first way's.
    """

    name: str
    options: dict[str, Any]
    dynamic: bool | None = None
    compile_s: float = 0.0
    fused: int = 0
    times: list[float] = dataclasses.field(default_factory=list)
    peak: int = 0
    difference: float = 0.0

    @property
    def ms(self) -> float:
        """The median of the steps."""
        return statistics.median(self.times)


def main(argv: Sequence[str]) -> int:
    """The exit status."""
    parser = Parser("python -m mixorder bench", DESCRIPTION, EPILOG)
    add_factory(parser)
    parser.add_argument("--steps", type=at_least(2), default=STEPS, help="timed steps (default: %(default)s)")
    parser.add_argument("--autotune", action="store_true", help="also time mixorder with mixorder_autotune")
    args = parser.parse_args(argv)
    import torch

    if not torch.cuda.is_available():
        parser.error(NO_GPU)
    ways = [Way("stock", {"mixorder": False}), Way("mixorder", {"mixorder": True})]
    if args.autotune:
        ways.append(Way("tuned", {"mixorder": True, "mixorder_autotune": True}))
    measure(ways, make(parser, args.factory, "cuda"), args.steps)
    print(table(ways))
    return judged(ways)


def measure(ways: Sequence[Way], example: Example, steps: int = STEPS) -> None:
    """Fill in each way. The first step compiles, and gives the gradients that are compared."""
    import torch

    from mixorder.inductor.config import without_autograd_cache
    from mixorder.inspection.accuracy import largest_error
    from mixorder.report import RegionRecord, collect

    torch.compiler.reset()
    steppers = [step_of(example, way.options, way.dynamic) for way in ways]
    expected: Sequence[Tensor | None] | None = None
    for way, step in zip(ways, steppers, strict=True):
        print(f"Compiling: {way.name}.", file=sys.stderr, flush=True)
        start = time.perf_counter()
        with without_autograd_cache(), collect() as records:
            torch.manual_seed(0)
            gradients = step()
            torch.cuda.synchronize()
        way.compile_s = time.perf_counter() - start
        way.fused = sum(isinstance(record, RegionRecord) for record in records)
        expected = expected or gradients
        pairs = zip(gradients, expected, strict=True)
        way.difference = largest_error((a, b.double()) for a, b in pairs if a is not None and b is not None)
    del gradients, expected, pairs  # else they count as memory
    warmup = 5
    for turn in range(warmup + steps):
        for way, step in zip(ways, steppers, strict=True):
            ms = clock(step)
            way.times += [ms] if turn >= warmup else []
    for way, step in zip(ways, steppers, strict=True):
        way.peak = peak(step)


Step = Callable[[], "tuple[Tensor | None, ...]"]
"""Runs forward and backward; returns the gradients, which are not accumulated."""


def step_of(example: Example, options: dict[str, Any], dynamic: bool | None = None) -> Step:
    """A compiled model's step; the first call compiles."""
    import torch

    from mixorder.inspection.backward import gradients, parameters_behind, roots_of

    function, inputs, named = example
    # An option and not a patch: a GPU's backward is compiled on a thread that a patch does not reach.
    compiled = torch.compile(function, options={**options, "fx_graph_cache": False}, dynamic=dynamic)
    into: list[Tensor] = []

    def step() -> tuple[Tensor | None, ...]:
        roots = roots_of(compiled(*inputs, **named))
        into.extend([] if into else parameters_behind(roots))
        return gradients(roots, into)

    return step


def clock(step: Step) -> float:
    """Milliseconds of a step, by events on the current stream of the GPU."""
    import torch

    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    step()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end)


def peak(step: Step) -> int:
    """Bytes of tensors at the peak of a step, by PyTorch's allocator."""
    import torch

    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    step()
    torch.cuda.synchronize()
    return int(torch.cuda.memory_stats()["requested_bytes.all.peak"])


def table(ways: Sequence[Way]) -> str:
    """A column per way, and how much longer each takes than the first."""
    from mixorder.inspection.table import table as aligned

    stock = ways[0]
    rows = [
        ["", *(way.name for way in ways)],
        ["step, ms", *(f"{way.ms:.3f}" for way in ways)],
        ["speedup of the step", *(f"{stock.ms / way.ms:.3f}" for way in ways)],
        ["peak memory, MiB", *(f"{way.peak / 2**20:.1f}" for way in ways)],
        ["first step, with compiling, s", *(f"{way.compile_s:.1f}" for way in ways)],
        ["regions fused", *(str(way.fused) for way in ways)],
        ["largest difference of a gradient", "-", *(f"{way.difference:.1e}" for way in ways[1:])],
    ]
    said = (
        f"Medians of {len(stock.times)} steps (forward and backward) each, alternating; "
        "stock: without mixorder"
    )
    return "\n".join([said, aligned(rows), *(_longer(way, stock) for way in ways[1:])])


def _longer(way: Way, stock: Way) -> str:
    """How much longer a way's steps take, turn by turn, with the quartiles."""
    differences = [b - a for a, b in zip(stock.times, way.times, strict=True)]
    low, middle, high = statistics.quantiles(differences, n=4)
    share = f"{middle:+.3f} ms a step ({middle / stock.ms:+.1%})"
    spread = ", which is less than its spread" if low <= 0 <= high else ""
    return f"{way.name} - stock: {share}, quartiles {low:+.3f} to {high:+.3f}{spread}"


def versus_predicted(example: Example, options: dict[str, Any], dynamic: bool | None, saved_us: float) -> str:
    """The table of a model without and with mixorder, and what a step was predicted to save."""
    ours = Way("mixorder", {"mixorder": True, **options}, dynamic)
    ways = [Way("stock", {"mixorder": False}, dynamic), ours]
    measure(ways, example)
    predicted = f"{-saved_us / 1e3:+.3f} ms, {-saved_us / 1e3 / ways[0].ms:+.1%} of stock's step"
    return f"{table(ways)}\nPredicted: {predicted}."


def judged(ways: Sequence[Way]) -> int:
    """The exit status: 0 if all gradients are stock's up to rounding; otherwise prints the difference."""
    off = [w.name for w in ways[1:] if not w.difference < 0.05]
    if off:
        print(f"\nFAILED: the gradients of {', '.join(off)} differ from stock's (a random op in the model?).")
    return int(bool(off))
