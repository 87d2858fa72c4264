"""One program by mixorder, by stock Inductor, and in eager float64: what differs, and how large errors are.

In: a `Program` and where to run it, "cuda" or "interpreter" (CPU tensors, Triton's interpreter; stock is then
the same graph without mixorder, node by node). Out: an `Outcome`. Memory that outputs may get is full of NaN
before each run; so is what lies between the rows of a padded input.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import linecache
import math
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import torch
import torch._inductor.ir as inductor_ir
import torch.nn.functional as F
from _programs import COL, FULL, KINDS, NARROWEST, ROW, Program
from torch import Tensor
from torch._inductor.runtime.hints import ReductionHint

from mixorder import pipeline
from mixorder.errors import Decline
from mixorder.report import RegionRecord, collect
from mixorder.schedule.device import H200

Results = list[Tensor]
ON = {"mixorder": True, "mixorder_strict": True, "mixorder_min_numel": 0}
ROWS_ADDED = 3
LEAST_TO_SHARE = 32
PLACES, PLACES_OF_FLOAT64 = 16, 256  # last places by which a result may be off, beside others' errors
RUNS = 24  # to see whether a region's surroundings are indeterminate
_PLANTS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
_RESERVE = 1 << 26


@dataclasses.dataclass
class Outcome:
    """What came of a program. `status`: "ok", "failed", "torch" (Inductor fails without mixorder) or
    "invalid" (eager does). `errors`: per gradient, mixorder's and stock's relative error against float64.
    `fused`: regions; `strategies`: theirs; `declined`: reasons of those left. `stock`: what is wrong with
    stock's results, empty for nothing. `lost`: the device is of no more use to this process.
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


class Difference(AssertionError):
    """mixorder's results are not what they should be; `kind` says in which way."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def check(program: Program, device: str) -> None:
    """Run the program everywhere. Raises AssertionError if it cannot be run or results differ."""
    outcome = run(program, device)
    assert outcome.status == "ok", f"{outcome.kind}: {outcome.message}\n{program.source()}"


def run(program: Program, device: str, stock: bool = True) -> Outcome:
    """Compare; whatever goes wrong is part of the outcome. Without `stock` it is asked only where results are
    not as exact as eager's."""
    started = time.perf_counter()
    try:
        outcome = _run(program, device, stock)
    except Exception as error:  # the fuzzer goes on with the next program
        outcome = Outcome("invalid", "eager", _told(error), lost=_lost(_told(error)))
    outcome.seconds = time.perf_counter() - started
    return outcome


def _run(program: Program, device: str, ask_stock: bool) -> Outcome:
    trial = _Trial(program, device)
    exact = [example.run(trial.function) for example in trial.examples(wide=True)]
    eager = [example.run(trial.function) for example in trial.examples()]
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
    # Nobody promises a gradient's strides; an output's are restored by what is not interpreted.
    strides = device == "cuda" and not program.backward
    if not ask_stock and not _wrong(program, ours, [eager], exact, strides):
        return Outcome("ok", **found)
    try:
        stock = trial.compiled({"mixorder": False})
        difference = _wrong(program, stock, [eager], exact)
        found["stock"] = difference.kind if difference else ""
    except Exception as error:
        if _lost(text := _told(error)):  # ours have ended: every run waits for the device
            return Outcome("torch", "device", text, lost=True, **found)
        stock, found["stock"] = eager, "crash"
    if difference := _wrong(program, ours, [stock, eager], exact, strides):
        return Outcome("failed", difference.kind, str(difference), **found)
    errors = () if stock is eager else _errors(program, ours[0], stock[0], exact[0])
    return Outcome("ok", errors=errors, **found)


def _wrong(
    program: Program,
    found: list[Results],
    others: list[list[Results]],
    exact: list[Results],
    strides: bool = False,
) -> Difference | None:
    """The first difference of results, for any size of the symbolic axis; None if they are right."""
    try:
        for results, truth, *theirs in zip(found, exact, *others, strict=True):
            compare(program, results, theirs, truth, strides)
    except Difference as difference:
        return difference
    return None


def _crash(trial: _Trial, error: Exception, found: dict[str, Any]) -> Outcome:
    """What an exception of a compile with mixorder means: Inductor may raise one without as well."""
    kind, text = error.kind if isinstance(error, Difference) else "crash", _told(error)
    if _lost(text):
        return Outcome("failed", "device", text, lost=True, **found)
    if kind == "indeterminate" and (not found["fused"] or _scans_differ(trial)):
        return Outcome("torch", kind, text, **found)
    try:
        trial.compiled({"mixorder": False, "triton.mix_order_reduction": False}, RUNS)
    except Exception as other:
        if kind == getattr(other, "kind", "crash"):
            return Outcome("torch", kind, text, lost=_lost(_told(other)), **found)
    if kind == "crash" and _given_back(trial):
        return Outcome("torch", "given-back", text, **found)
    return Outcome("failed", kind, text, **found)


def _given_back(trial: _Trial) -> bool:
    """Whether it compiles all the same where mixorder is not strict: without the regions that Inductor could
    not compile, and with a warning that says so."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            results = trial.compiled({"mixorder": True, "mixorder_strict": False}, times=2)
        except Exception:
            return False
    exact = [example.run(trial.function) for example in trial.examples(wide=True)]
    eager = [example.run(trial.function) for example in trial.examples()]
    told = any("mixorder" in str(w.message) and "compiled without" in str(w.message) for w in caught)
    return told and not _wrong(trial.program, results, [eager], exact)


def _scans_differ(trial: _Trial) -> bool:
    """Whether results are the same in every run once Inductor splits no scan. Where it splits a scan, a block
    adds up what it finds of those before it, which is another sum in every run (H200, torch 2.11: a cumsum of
    rows of 65536 by itself, 40 of 40 runs). mixorder's kernels are as before."""
    try:
        with mock.patch.object(inductor_ir.Scan, "num_splits", lambda **_: (ReductionHint.DEFAULT, 1)):
            trial.compiled({"mixorder": True}, RUNS)
    except Exception:
        return False
    return True


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _lost(text: str) -> bool:
    return any(words in text for words in ("CUDA error", "an illegal memory access", "misaligned address"))


def function_of(program: Program) -> Callable[..., Results]:
    """The program's source as a function."""
    text, name = program.source(), f"<program {hash(program)}>"
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    namespace: dict[str, Any] = {"torch": torch, "F": F}
    exec(compile(text, name, "exec"), namespace)
    return namespace["program"]


class _Trial:
    """A program on a device: its function, inputs for each size of the symbolic axis, and compiled runs."""

    def __init__(self, program: Program, device: str) -> None:
        self.program, self.device = program, device
        self.function = function_of(program)
        self.added = (0, ROWS_ADDED) if program.dynamic_dim is not None else (0,)

    def examples(self, wide: bool = False) -> Iterator[Example]:
        for added in self.added:
            yield Example(self.program, self.device, added, wide)

    def compiled(self, options: dict[str, Any], times: int = 1) -> list[Results]:
        """Results for each size. If they are made several `times`, they must agree in every bit."""
        torch._dynamo.reset()
        dynamic = None if self.program.dynamic else False
        function = torch.compile(self.function, dynamic=dynamic, **self._compiler(options))
        with _made_to(self.program, self.device):
            runs = [[self._poisoned_run(function, e) for e in self.examples()] for _ in range(times)]
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
        if self.device == "cuda":
            torch.cuda.synchronize()
        return results

    def _compiler(self, options: dict[str, Any]) -> dict[str, Any]:
        split_size = self.program.split_size
        if self.device == "cuda":
            ours = {**ON, "mixorder_split_size": split_size} if options["mixorder"] else {}
            return {"options": {**ours, **options, "fx_graph_cache": False}}
        from mixorder.interpret import compile_for_interpreter
        from mixorder.options import Options

        on = Options(enabled=True, strict=True, interpret=True, min_numel=0, split_size=split_size)
        return {"backend": compile_for_interpreter(on if options["mixorder"] else Options(enabled=False))}


@contextlib.contextmanager
def _made_to(program: Program, device: str) -> Iterator[None]:
    """Have the pipeline try the program's strategy first and, without a GPU, believe in one of few
    multiprocessors: with many, a small tensor gets tiles of one row, none of them partial."""
    first = program.strategy
    if first == "shared" and math.prod(program.shape[d] for d in program.inner) <= LEAST_TO_SHARE:
        first = ""
    changes: dict[str, Any] = {"STRATEGIES": tuple(sorted(pipeline.STRATEGIES, key=lambda s: s != first))}
    if device != "cuda":
        few = dataclasses.replace(H200, num_sm=1 + 2 * (program.seed % 2))
        changes["device_info"] = lambda _: few
    with mock.patch.multiple(pipeline, **changes):
        yield


def same_bits(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape:
        return False
    a, b = (t.contiguous().view(-1).view(torch.uint8) for t in (one, other))
    return torch.equal(a, b)


class Example:
    """A program's inputs and upstream gradients. The same numbers in every run; in float64 if `wide`."""

    def __init__(self, program: Program, device: str, rows_added: int = 0, wide: bool = False) -> None:
        self.program, self.wide, self.rows_added = program, wide, rows_added
        self.device = "cuda" if device == "cuda" else "cpu"
        self.generator = torch.Generator(self.device).manual_seed(program.seed)
        narrow, weights = getattr(torch, program.dtype), getattr(torch, program.weight_dtype)
        layouts = program.layouts
        written = {s.args[0] for s in program.steps if s.op == "write_full"}
        shapes = {name: program.shape_of(KINDS[name], rows_added) for name in ("x", "y", "r", "w")}
        self.inputs = {}
        for i, (name, shape) in enumerate(shapes.items()):
            values = self._planted(name, self._random(shape, weights if KINDS[name] == COL else narrow))
            layout = layouts[i % len(layouts)] if KINDS[name] == FULL else "contiguous"
            self.inputs[name] = laid_out(values, "contiguous" if name in written else layout)
        if program.uses_matrix:
            cols = program.shape[-1]
            self.inputs["m"] = self._random((cols, cols), narrow) / cols**0.5

    def _random(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        values = torch.randn(tuple(shape), generator=self.generator, device=self.device).to(dtype)
        return values.double() if self.wide else values

    def _planted(self, name: str, values: Tensor) -> Tensor:
        for where, place, what in self.program.planted:
            if where == name and values.numel():
                values.view(-1)[place % values.numel()] = _PLANTS[what]
        return values

    def run(self, function: Callable[..., Any], mark: bool = False) -> Results:
        """Outputs and the inputs afterwards; or the gradients of what has one, zeros where there is none."""
        args, dim = list(self.inputs.values()), self.program.dynamic_dim
        if self.program.backward:
            args = [a.detach().requires_grad_() for a in args]
        if mark and dim is not None:
            for value, name in zip(args, self.inputs, strict=True):
                if value.dim() > dim and KINDS.get(name) in (FULL, ROW) and value.shape[dim] > 1:
                    torch._dynamo.maybe_mark_dynamic(value, dim)
        if not self.program.backward:
            with torch.no_grad():
                return [*function(*args), *args]
        outputs = [y for y in function(*args) if y.requires_grad]
        layouts = self.program.layouts[2:] or ("contiguous",)
        narrow = getattr(torch, self.program.dtype)  # so that float64 gets the same numbers
        upstream = [
            laid_out(self._random(y.shape, narrow).to(y.dtype), layouts[i % len(layouts)])
            for i, y in enumerate(outputs)
        ]
        if not outputs:
            return []
        before = [t.detach().clone() for t in (*args, *upstream)]
        grads = torch.autograd.grad(outputs, args, upstream, allow_unused=True)
        if mark and not all(map(same_bits, (a.detach() for a in (*args, *upstream)), before)):
            raise Difference("mutated", "an input or an upstream gradient was written")
        return [torch.zeros_like(a) if g is None else g for a, g in zip(args, grads, strict=True)]


def laid_out(values: Tensor, layout: str) -> Tensor:
    """A tensor of these values (of the first along dim 0, where they are repeated), so laid out in memory."""
    if values.dim() == 0 or values.numel() == 0:
        return values
    last = values.shape[-1]
    match layout:
        case "padded":
            place = values.new_full((*values.shape[:-1], last + 5), math.nan)[..., 2 : 2 + last]
        case "offset":
            place = values.new_full((values.numel() + 3,), math.nan)[3:].view(values.shape)
        case "transposed":
            place = torch.empty_like(values.transpose(0, -1).contiguous()).transpose(0, -1)
        case "expanded":
            return values[:1].expand(values.shape)
        case _:
            return values
    return place.copy_(values)


@contextlib.contextmanager
def poisoned(device: str) -> Iterator[None]:
    """Memory that is handed out inside has every bit set: NaN in every float dtype."""
    if device == "cuda":
        poison_free_memory()
        yield
        return
    original = torch.fx.Interpreter.call_function

    def call_function(self: Any, target: Any, args: Any, kwargs: Any) -> Any:
        result = original(self, target, args, kwargs)
        if target is torch.ops.aten.empty_strided.default:
            result.untyped_storage().fill_(255)
        return result

    torch.fx.Interpreter.call_function = call_function  # type: ignore[method-assign]
    try:
        yield
    finally:
        torch.fx.Interpreter.call_function = original  # type: ignore[method-assign]


@functools.cache
def _reserve() -> None:
    """Free memory for the allocator to hand out, of both its kinds of blocks."""
    held = [torch.empty(_RESERVE, dtype=torch.uint8, device="cuda")]
    held += [torch.empty(1 << 20, dtype=torch.uint8, device="cuda") for _ in range(16)]
    del held


def poison_free_memory() -> None:
    """Set every bit of what PyTorch's allocator holds and nobody uses: NaN in every float dtype."""
    _reserve()
    torch.cuda.synchronize()
    for segment in torch.cuda.memory_snapshot():
        address = segment["address"]
        for block in segment["blocks"]:
            if block["state"] == "inactive":
                torch.as_tensor(_Raw(address, block["size"]), device="cuda").fill_(255)
            address += block["size"]
    torch.cuda.synchronize()


class _Raw:
    """Memory by its address."""

    def __init__(self, address: int, size: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (size,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 3,
            "strides": None,
        }


def compare(
    program: Program, ours: Results, others: Sequence[Results], exact: Results, strides: bool = False
) -> None:
    """Raises `Difference` where ours are not as exact as the others, or of another form than the first.

    The others agree with float64 where it is fair to ask for it: where one of them has another class of value
    (nan, an infinity, a number), or a large error, ours may, too.
    """
    # There is nothing more exact to compare float64 with, and eager's errors seem to be none.
    places = PLACES_OF_FLOAT64 if program.dtype == "float64" else PLACES
    eps = places * 2.0 ** -NARROWEST[program.dtype]
    floor = places * 2.0 ** -NARROWEST["float64" if program.dtype == "float64" else "float32"]
    for i, (mine, truth) in enumerate(zip(ours, exact, strict=True)):
        theirs = [other[i] for other in others]
        _compare_form(i, mine, theirs, strides)
        if not mine.numel():
            continue
        if not mine.is_floating_point():
            if not torch.equal(mine, theirs[0]) and all(torch.equal(t, theirs[0]) for t in theirs):
                raise Difference("values", f"result {i}: other integers")
            continue
        _compare_classes(i, mine, theirs, truth)
        finite = truth.isfinite() & mine.isfinite()
        for other in theirs:
            finite &= other.isfinite()
        values = truth[finite]
        if not values.numel():
            continue
        errors = [(t[finite].double() - values).abs() for t in (mine, *theirs)]
        _compare_errors(i, errors, values, eps, floor)


def _compare_classes(i: int, mine: Tensor, theirs: Sequence[Tensor], truth: Tensor) -> None:
    """An infinity has the sign of a factor, which is a matter of rounding where that is next to zero: up to
    twice as many as the others' may be off. All else must be right wherever the others are."""
    wrong = classes(mine) != classes(truth)
    for other in theirs:
        wrong &= classes(other) == classes(truth)
    turned = [(t == -truth) & truth.isinf() for t in (mine, *theirs)]
    if int(turned[0].sum()) <= 2 * max(int(t.sum()) for t in turned[1:]):
        wrong &= ~turned[0]
    if wrong.any():
        place = wrong.nonzero()[0].tolist()
        raise Difference(
            "class",
            f"result {i} at {place}: {mine[tuple(place)].item()} for {truth[tuple(place)].item()},"
            f" and {int(wrong.sum())} in all",
        )


def _compare_form(i: int, mine: Tensor, theirs: Sequence[Tensor], strides: bool) -> None:
    """`strides`: they must be the others', too."""
    if any(mine.dtype != t.dtype or mine.shape != t.shape for t in theirs):
        raise Difference("form", f"result {i}: {mine.dtype} {tuple(mine.shape)} for {theirs[0].dtype}")
    expected = {strides_of(t) for t in theirs}
    if strides and strides_of(mine) not in expected and len(expected) == 1:
        raise Difference("form", f"result {i}: strides {mine.stride()} for {theirs[0].stride()}")


def strides_of(t: Tensor) -> tuple[int, ...]:
    """Strides of the dims that have any meaning."""
    return tuple(s for s, n in zip(t.stride(), t.shape, strict=True) if n > 1)


def _compare_errors(i: int, errors: list[Tensor], values: Tensor, eps: float, floor: float) -> None:
    """By the worst element, and by the norm. `floor`: what a sum of numbers around 1 that is zero may be."""
    mine, others = errors[0], errors[1:]
    for what, size in (("max", lambda t: float(t.max())), ("norm", lambda t: float(t.norm()))):
        scale = size(values.abs())
        spread = 1.0 if what == "max" else math.sqrt(values.numel())
        allowed = 4 * max(map(size, others)) + eps * scale + floor * spread
        if not size(mine) <= allowed:
            raise Difference(
                "values",
                f"result {i}: {what} error {size(mine):.3g} of {scale:.3g},"
                f" others' {', '.join(f'{size(o):.3g}' for o in others)}",
            )


def classes(t: Tensor) -> Tensor:
    """0 for a number, 1 for nan, 2 and 3 for the infinities."""
    return t.isnan().to(torch.uint8) + 2 * (t == math.inf) + 3 * (t == -math.inf)


def _errors(
    program: Program, ours: Results, stock: Results, exact: Results
) -> tuple[tuple[float, float], ...]:
    """Relative errors of gradients that are all numbers and not zero."""
    if not program.backward:
        return ()
    found = []
    for mine, theirs, truth in zip(ours, stock, exact, strict=True):
        size = float(truth.norm()) if truth.numel() else 0.0
        if size > 0 and math.isfinite(size):
            found.append(tuple(float((t.double() - truth).norm()) / size for t in (mine, theirs)))
    return tuple(e for e in found if all(map(math.isfinite, e)))
