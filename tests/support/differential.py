"""One program by mixorder, by stock Inductor, and in eager float64: what differs, and how large errors are.

In: a `Program` and where to run it, "cuda" or "interpreter" (CPU tensors, Triton's interpreter; stock is then
the same graph without mixorder, node by node). Out: an `Outcome`. Before each run, free memory is filled with
NaN; so is the padding between the rows of a padded input.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
import torch._inductor.ir as inductor_ir
import torch.nn.functional as F
from torch._inductor import config
from torch._inductor.runtime.hints import ReductionHint
from torch.fx.experimental import _config as symbolic

from mixorder.errors import Decline
from mixorder.planning import planning_with
from mixorder.report import RegionRecord, collect
from mixorder.schedule.device import MEASURED as H200
from mixorder.strategies import STRATEGIES

from . import effects
from .comparison import Difference, Results, compare, errors_of, same_bits
from .compilers import by_node, how
from .inputs import Example, poisoned
from .programs import Program
from .sources import function_from, lost, told

LEAST_TO_SHARE = 32
STOCK: dict[str, Any] = {"mixorder": False}
UNMIXED = STOCK | {"triton.mix_order_reduction": False}
UNFUSED = UNMIXED | {"max_fusion_size": 1}
NEARBY = 16  # runs of eager near the inputs: where it is as wrong, the program jumps (a gradient of 0)
RUNS = 24  # to find out whether operators outside of the region are indeterminate


@dataclasses.dataclass
class Outcome:
    """The result of a program. `status`: "ok", "failed", "torch" (Inductor fails without mixorder) or
    "invalid" (eager fails). `errors`: per gradient, mixorder's and stock's relative error against float64.
    `fused`: the number of regions; `strategies`: of these regions; `declined`: the reasons. `stock`: what is
    wrong with stock's results, empty if they are right. `lost`: this process can no longer use the device.
    """

    status: str
    kind: str = ""
    message: str = ""
    fused: int = 0
    declined: tuple[str, ...] = ()
    strategies: tuple[str, ...] = ()
    errors: tuple[tuple[float, float], ...] = ()
    stock: str = ""
    seconds: float = 0.0
    lost: bool = False


def check(program: Program, device: str, stock: bool = True) -> None:
    """Run the program everywhere. Raises AssertionError if it cannot be run or results differ."""
    outcome = run(program, device, stock)
    assert outcome.status == "ok", f"{outcome.kind}: {outcome.message}\n{program.source()}"


def run(program: Program, device: str, stock: bool = True) -> Outcome:
    """Compare; errors are part of the outcome. Without `stock`, stock Inductor is run only where results are
    not as exact as eager's."""
    started = time.perf_counter()
    try:
        outcome = _run(program, device, stock)
    except Exception as error:  # the fuzzer goes on with the next program
        outcome = Outcome("invalid", "eager", told(error), lost=lost(told(error)))
    outcome.seconds = time.perf_counter() - started
    return outcome


def _run(program: Program, device: str, ask_stock: bool) -> Outcome:
    with effects.group("all_reduce" in program.source()):
        return _compared(_Trial(program, device), ask_stock)


def _compared(trial: _Trial, ask_stock: bool) -> Outcome:
    program, device = trial.program, trial.device
    exact, eager = trial.eager(wide=True), trial.eager()
    noted = trial.calls
    crash: Exception | None = None
    with collect() as records:
        try:
            ours = trial.compiled({"mixorder": True}, times=2)
        except Exception as error:
            crash = error
    found: dict[str, Any] = {
        "fused": sum(isinstance(r, RegionRecord) for r in records),
        "strategies": tuple(r.strategy for r in records if isinstance(r, RegionRecord)),
        "declined": tuple(r.reason.value for r in records if isinstance(r, Decline)),
    }
    if crash:
        return _crash(trial, crash, found)
    called = trial.calls
    moved = called != noted
    # A gradient's strides are not specified. Those of outputs are restored except in the interpreter.
    strides = device == "cuda" and not program.backward
    if not ask_stock and not moved and not _wrong(trial, ours, [eager], exact, strides):
        return Outcome("ok", **found)
    try:
        stock = trial.compiled(STOCK)
        difference = _wrong(trial, stock, [eager], exact)
        found["stock"] = difference.kind if difference else ""
    except Exception as error:
        if lost(text := told(error)):  # no kernel of mixorder's is running: every run waits for the device
            return Outcome("torch", "device", text, lost=True, **found)
        stock, found["stock"] = eager, "crash"
    # Inductor keeps the order of no calls that it lets a program register as ordered (torch 2.11 to 2.14).
    if moved and (stock is eager or called != trial.calls):
        return Outcome("failed", "effects", f"{called} for {noted}", **found)
    if difference := _wrong(trial, ours, [stock, eager], exact, strides):
        others = [stock, eager, *_more(trial)]
        torch_too = difference.kind != "form" and not _wrong(trial, ours, others, exact)
        if difference.kind == "values" and not torch_too:
            others += [trial.eager(nearby=seed) for seed in range(1, 1 + NEARBY)]
            torch_too = not _wrong(trial, ours, others, exact)
        return Outcome("torch" if torch_too else "failed", difference.kind, str(difference), **found)
    errors = () if stock is eager else errors_of(program, ours[0], stock[0], exact[0])
    return Outcome("ok", errors=errors, **found)


def _more(trial: _Trial) -> Iterator[list[Results]]:
    """The results of Inductor without mixorder that fuses nothing, and of its graph, run node by node.

    Beside a region, Inductor fuses the other nodes in another way. A wrong kernel of its own may then give
    wrong results that the kernels of stock hide. Where its graph is wrong (the constants 0.0 and -0.0 are
    one, random numbers are drawn in another order), so are mixorder's results, while stock may crash, or make
    a second mistake.
    """
    for options in (UNFUSED, {"backend": by_node}):
        try:
            with poisoned("cpu"):
                results = trial.compiled(options)
        except Exception:
            continue
        yield results


def _wrong(
    trial: _Trial,
    found: list[Results],
    others: list[list[Results]],
    exact: list[Results],
    strides: bool = False,
) -> Difference | None:
    """The first difference of results, for any size of the symbolic axis; None if they are right."""
    try:
        for letters, results, truth, *theirs in zip(trial.classes, found, exact, *others, strict=True):
            compare(trial.program, results, theirs, truth, strides, letters)
    except Difference as difference:
        return difference
    return None


def _crash(trial: _Trial, error: Exception, found: dict[str, Any]) -> Outcome:
    """The outcome of an exception with mixorder: Inductor alone may raise one as well."""
    kind, text = error.kind if isinstance(error, Difference) else "crash", told(error)
    if lost(text):
        return Outcome("failed", "device", text, lost=True, **found)
    if kind == "indeterminate" and (not found["fused"] or _scans_differ(trial)):
        return Outcome("torch", kind, text, **found)
    try:
        trial.compiled(UNMIXED, RUNS)
    except Exception as other:
        if kind == getattr(other, "kind", "crash"):
            return Outcome("torch", kind, text, lost=lost(told(other)), **found)
    if kind == "crash" and _given_back(trial):
        return Outcome("torch", "given-back", text, **found)
    return Outcome("failed", kind, text, **found)


def _given_back(trial: _Trial) -> bool:
    """Whether it compiles without strict mode: without the regions that Inductor cannot compile, and with a
    warning that says so."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            results = trial.compiled({"mixorder": True, "mixorder_strict": False}, times=2)
        except Exception:
            return False
    exact, eager = trial.eager(wide=True), trial.eager()
    told = any("mixorder" in str(w.message) and "compiled without" in str(w.message) for w in caught)
    return told and not _wrong(trial, results, [eager], exact)


def _scans_differ(trial: _Trial) -> bool:
    """Whether results are the same in every run if Inductor splits no scan. In a split scan, each block adds
    up the available sums of earlier blocks, in an order that varies (H200, torch 2.11: a cumsum of
    rows of 65536 by itself, 40 of 40 runs). mixorder's kernels are unchanged."""
    try:
        with mock.patch.object(inductor_ir.Scan, "num_splits", lambda **_: (ReductionHint.DEFAULT, 1)):
            trial.compiled({"mixorder": True}, RUNS)
    except Exception:
        return False
    return True


def places(t: torch.Tensor, dim: int, number: int) -> torch.Tensor:
    """A permutation of the places along a dim of `t`, int64: computed for an odd number, else in memory."""
    size = t.shape[dim]
    if number % 2:
        return (torch.arange(size, device=t.device) + number) % size
    return torch.sort(torch.arange(size, device=t.device) * 7919 % 1009, stable=True).indices


def normed(t: torch.Tensor, weight: torch.Tensor, number: int, *dims: tuple[int, ...]) -> torch.Tensor:
    """The norm of `t`, as given or as a product stores it, over one of two sets of dims; as a matrix."""
    stored = t @ torch.eye(t.shape[-1], dtype=t.dtype, device=t.device) if number % 2 else t
    wide = stored.to(torch.promote_types(t.dtype, torch.float32))
    var, mean = torch.var_mean(wide, dims[number // 2 % 2], correction=0, keepdim=True)
    scaled = (wide - mean) * torch.rsqrt(var + 0.1) * weight
    return (scaled.flatten(0, -2) + 0.3).to(t.dtype)


def chained(t: torch.Tensor, weight: torch.Tensor, matrix: torch.Tensor, *args: Any) -> torch.Tensor:
    """Three residual blocks, each of a product and a norm."""
    for _ in range(3):
        t = (t + normed(t.to(matrix.dtype) @ matrix, weight, *args).reshape(t.shape)) * 0.5
    return t


def saturated(t: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A cast to float8. On a CPU, what is beyond its range becomes the largest number, as in kernels of GPUs:
    eager gives NaN or an infinity there, which depends on the version of torch."""
    limits = torch.finfo(dtype)
    return (t if t.is_cuda else t.clamp(limits.min, limits.max)).to(dtype)


def hardswish(t: torch.Tensor) -> torch.Tensor:
    """Eager's kernel for GPUs multiplies float64 by a sixth in float32 (torch 2.11)."""
    return F.hardswish(t) if t.dtype != torch.float64 else t * F.relu6(t + 3) / 6


def function_of(program: Program) -> Callable[..., Results]:
    """The program's source as a function."""
    known = {"torch": torch, "F": F, "effects": effects, "places": places, "normed": normed}
    known |= {"saturated": saturated, "chained": chained, "hardswish": hardswish}
    return function_from(program.source(), known)


def _nearby(t: torch.Tensor, seed: int) -> torch.Tensor:
    """Each number of a tensor as it is, or the next one on either side."""
    if not t.is_floating_point() or t.itemsize == 1:
        return t
    generator = torch.Generator().manual_seed(seed)
    steps = torch.randint(-1, 2, t.shape, generator=generator).to(t.device)
    return (t.double() * (1 + torch.finfo(t.dtype).eps * steps)).to(t.dtype)


class _Trial:
    """A program on a device: its function, inputs for each size of the symbolic axis, and compiled runs."""

    def __init__(self, program: Program, device: str) -> None:
        self.program, self.device = program, device
        self.function = function_of(program)
        self.sizes = (None, *(program.sizes if program.dynamic_dim is not None else ()))
        self.classes: list[list[str]] = []  # of results, for each size
        self.calls: list[list[int]] = []  # the logged calls of the last run, for each size

    def examples(self, wide: bool = False) -> Iterator[Example]:
        for size in self.sizes:
            yield Example(self.program, self.device, size, wide)

    def eager(self, wide: bool = False, nearby: int = 0) -> list[Results]:
        """Results for each size; `nearby`: for inputs that differ in their last place, if not 0."""
        found, self.classes, self.calls = [], [], []
        for example in self.examples(wide):
            if nearby:
                example.inputs = {name: _nearby(t, nearby) for name, t in example.inputs.items()}
            found.append(example.run(self.function))
            self.classes.append(example.classes)
            self.calls.append([*effects.LOG])
        return found

    def compiled(self, options: dict[str, Any], times: int = 1) -> list[Results]:
        """Results for each size. With several `times`, all runs must agree in every bit."""
        torch._dynamo.reset()
        program = self.program
        dynamic = None if program.dynamic else False
        given = {name: value for name, value in options.items() if name != "mixorder"}
        if "backend" not in given:
            given = how(self.device, options["mixorder"], split_size=program.split_size, **given)
        function = torch.compile(self.function, dynamic=dynamic, **given)
        moved: list[str] = []
        self.calls = []
        with (
            _made_to(program, self.device),
            effects.watched(moved),
            config.patch(fallback_random=program.has_effects),
            symbolic.patch(backed_size_oblivious=program.oblivious),
        ):
            # Of several sizes some may be compiled anew, and then be summed in another order: once before.
            warm = int(times > 1 and len(self.sizes) > 1)
            runs = [[self._poisoned_run(function, e) for e in self.examples()] for _ in range(times + warm)]
            runs = runs[warm:]
        self.calls = self.calls[: len(self.sizes)]
        if moved:
            raise Difference("effects", moved[0])
        for again in runs[1:]:
            for first, second in zip(runs[0], again, strict=True):
                if other := [
                    i for i, pair in enumerate(zip(first, second, strict=True)) if not same_bits(*pair)
                ]:
                    raise Difference("indeterminate", f"a second run gives other bits in results {other}")
        return runs[0]

    def _poisoned_run(self, function: Callable[..., Any], example: Example) -> Results:
        with poisoned(self.device):
            results = example.run(function, mark=True)
        self.calls.append([*effects.LOG])
        if self.device == "cuda":
            torch.cuda.synchronize()
        return results


@contextlib.contextmanager
def _made_to(program: Program, device: str) -> Iterator[None]:
    """Make the pipeline try the program's strategy first and, without a GPU, plan for one with few
    multiprocessors: with many, a small tensor gets tiles of one row, none of them partial."""
    first = program.strategy
    if first == "cooperative" and math.prod(program.shape[d] for d in program.inner) <= LEAST_TO_SHARE:
        first = ""
    order = tuple(sorted(STRATEGIES, key=lambda s: s.name != first))
    few = None if device == "cuda" else dataclasses.replace(H200, num_sm=1 + 2 * (program.seed % 2))
    with planning_with(device=few, strategies=order):
        yield
