"""One of PyTorch's own cases by mixorder, by stock Inductor, in eager, and in eager float64: differences.

In: a `Case` and a device, "cuda" or "interpreter". Out: an `Ended`, which says of each unit how it ended and
whether a region held the op. Units of a case are compiled as one graph; where that fails, each by itself.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import itertools
import re
import types
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from mixorder import pipeline
from mixorder.errors import Decline
from mixorder.report import RegionRecord, collect

from .comparison import Difference, compare
from .compilers import how, multiprocessors
from .inputs import poisoned
from .sources import function_from, lost, told
from .torch_cases import Case, Unit, units
from .torch_source import source

Results = list[Tensor]
MOST_TOLD = 1500
MOST_OFF = 0.25  # of a result's norm


@dataclasses.dataclass
class Found:
    """Of a unit: "ok", "failed", "torch" (it does not compile without mixorder either) or "invalid" (eager
    fails); `held`: whether a node of its op is in a region."""

    label: str
    status: str = "ok"
    kind: str = ""
    message: str = ""
    held: bool = False
    source: str = ""


@dataclasses.dataclass
class Ended:
    """`fused`: regions of the graph; `declined`: reasons; `lost`: the device can no longer be used."""

    units: list[Found]
    fused: int = 0
    declined: tuple[str, ...] = ()
    lost: bool = False


def run_case(case: Case, device: str, samples: int) -> Ended:
    """Compare all units of a case, in one graph if that goes well."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        todo = units(case, device, samples)
        if device == "cuda":
            try:
                torch.cuda.synchronize()
            except Exception as error:  # eager itself has asserted on a sample
                return Ended([Found("samples", "invalid", "device", _told(error))], lost=True)
        whole = _compared(Trial(case, todo, device)) if todo else Ended([])
        if len(todo) < 2 or whole.lost or not (bad := [f for f in whole.units if f.status != "ok"]):
            return whole
        alone = [_compared(Trial(case, [unit], device)) for unit in todo]
    found = [one.units[0] for one in alone]
    if all(f.status == "ok" for f in found):
        together = [dataclasses.replace(f, label=f"together, {f.label}") for f in bad]
        found += [f for f in together if f.status == "failed"]
    reasons = tuple(r for one in alone for r in one.declined)
    return Ended(found, sum(one.fused for one in alone), reasons, any(one.lost for one in alone))


class Trial:
    """Units as one function on a device: their inputs, and results of any way to run it."""

    def __init__(self, case: Case, todo: Sequence[Unit], device: str) -> None:
        self.case, self.units, self.device = case, todo, device

    def text(self, wide: bool = False) -> tuple[str, dict[str, Any], list[int]]:
        """Source, its namespace, and how many results each unit has."""
        names, lines, results, counts = [], [], [], []
        space: dict[str, Any] = {"torch": torch}
        for i, unit in enumerate(self.units):
            prefix = f"u{i}_" if len(self.units) > 1 else ""
            taken, made, given, needed = source(unit, prefix, wide)
            names += taken
            lines += made
            results += given
            counts.append(len(given))
            space |= needed
        body = "".join(f"    {line}\n" for line in lines)
        return f"def program({', '.join(names)}):\n{body}    return [{', '.join(results)}]\n", space, counts

    def function(self, wide: bool = False) -> tuple[Callable[..., Results], list[nn.Module]]:
        text, space, _ = self.text(wide)
        modules = []
        for name, value in space.items():
            if isinstance(value, nn.Module):
                space[name] = copy.deepcopy(value).double() if wide else copy.deepcopy(value)
                modules += [space[name]] if name.endswith("op") else []
        return function_from(text, space), modules

    def eager(self, wide: bool = False) -> list[Results]:
        function, modules = self.function(wide)
        if not wide:
            return self.results(function, modules)
        torch.set_default_dtype(torch.float64)
        try:
            return self.results(function, modules, wide)
        finally:
            torch.set_default_dtype(torch.float32)

    def compiled(self, options: dict[str, Any]) -> list[Results]:
        torch._dynamo.reset()
        function, modules = self.function()
        compiled = torch.compile(function, dynamic=False, **how(self.device, options["mixorder"]))
        few = contextlib.nullcontext() if self.device == "cuda" else multiprocessors(3)
        with few, poisoned(self.device):
            results = self.results(compiled, modules)
        if self.device == "cuda":
            torch.cuda.synchronize()
        return results

    def results(
        self, function: Callable[..., Results], modules: Sequence[nn.Module], wide: bool = False
    ) -> list[Results]:
        """By unit: outputs, inputs afterwards and buffers; or gradients."""
        given = [[_copied(t, wide) for t in (*u.tensors, *u.extra)] for u in self.units]
        tensors = [t for one in given for t in one]
        own = dict(zip((i for i, u in enumerate(self.units) if u.module), modules, strict=True))
        counts = self.text()[2]
        if not self.case.backward:
            with torch.no_grad():
                outputs = iter(function(*tensors))
            states = [list(own[i].state_dict().values()) if i in own else [] for i in range(len(given))]
            return [
                [*(next(outputs) for _ in range(n)), *one, *state]
                for n, one, state in zip(counts, given, states, strict=True)
            ]
        results = iter(function(*tensors))
        found: Results = []
        upstream: Results = []
        for n in counts:  # each unit gets the same numbers whatever stands beside it
            generator = torch.Generator().manual_seed(3)
            for y in itertools.islice(results, n):
                drawn = torch.randn(y.shape, generator=generator, dtype=torch.float32)
                drawn = drawn.to(getattr(torch, self.case.dtype))
                if y.requires_grad:
                    found.append(y)
                    upstream.append(drawn.to(y.device, y.dtype))
        leaves = [
            [t for t in (*one, *(own[i].parameters() if i in own else ())) if t.requires_grad]
            for i, one in enumerate(given)
        ]
        flat = [t for one in leaves for t in one]
        gradients = iter(torch.autograd.grad(found, flat, upstream, allow_unused=True))
        return [
            [torch.zeros_like(t) if g is None else g for t in one for g in (next(gradients),)]
            for one in leaves
        ]


def _copied(t: Tensor, wide: bool) -> Tensor:
    copy_of = t.detach().clone()
    if wide and t.is_floating_point():
        copy_of = copy_of.double()
    return copy_of.requires_grad_(t.requires_grad)


def _compared(trial: Trial) -> Ended:
    """Run it in all ways that are needed."""
    found = [Found(unit.label, source=trial.text()[0]) for unit in trial.units]
    try:
        exact, eager = trial.eager(wide=True), trial.eager()
    except Exception as error:
        return Ended([dataclasses.replace(f, status="invalid", message=_told(error)) for f in found])
    held: set[int] = set()
    with collect() as records, _watched(trial, held):
        try:
            ours: list[Results] | Exception = trial.compiled({"mixorder": True})
        except Exception as error:
            ours = error
    for i in held:
        found[i].held = True
    ended = Ended(
        found,
        sum(isinstance(r, RegionRecord) for r in records),
        tuple(r.reason.value for r in records if isinstance(r, Decline)),
    )
    if isinstance(ours, Exception):
        _tell_crash(trial, ours, ended)
        return ended
    wrong = [_wrong(mine, [theirs], truth) for mine, theirs, truth in zip(ours, eager, exact, strict=True)]
    if not any(wrong):
        return ended
    try:
        stock = trial.compiled({"mixorder": False})
        wrong = [_wrong(*one) for one in zip(ours, zip(stock, eager, strict=True), exact, strict=True)]
    except Exception as error:
        ended.lost = lost(_told(error))
    for one, difference in zip(found, wrong, strict=True):
        if difference:
            one.status, one.kind, one.message = "failed", difference.kind, str(difference)
    return ended


def _tell_crash(trial: Trial, error: Exception, ended: Ended) -> None:
    """A bug of mixorder is one even where Inductor fails as well; what else is raised may be Inductor's."""
    text = _told(error)
    status = "failed"
    if lost(text):
        ended.lost = True
    elif "mixorder failed in stage" not in text:
        try:
            trial.compiled({"mixorder": False})
        except Exception:
            status = "torch"
    for one in ended.units:
        one.status, one.kind, one.message = status, "crash", text


def _told(error: Exception) -> str:
    """What was raised, and the cause that mixorder names."""
    text = told(error)
    cause = re.search(r"mixorder failed in stage[^\n]*", text)
    return (cause[0] + "\n" if cause else "") + text[-MOST_TOLD:]


@contextlib.contextmanager
def _watched(trial: Trial, held: set[int]) -> Iterator[None]:
    """Note which units' ops have a node in a region that is rewritten."""
    original = pipeline.replace
    marks = [f"u{i}_op(" if len(trial.units) > 1 else " op(" for i in range(len(trial.units))]

    def replace(graph: Any, region: Any, *args: Any) -> Any:
        for node in region.nodes:
            trace = node.meta.get("stack_trace") or ""
            held.update(i for i, mark in enumerate(marks) if mark in trace)
        return original(graph, region, *args)

    with mock.patch.object(pipeline, "replace", replace):
        yield


def _wrong(mine: Results, others: Sequence[Results], exact: Results) -> Difference | None:
    """The first difference of a unit's results; eager's are the last of `others`."""
    try:
        for i, (one, truth, *theirs) in enumerate(zip(mine, exact, *others, strict=True)):
            _compare_one(i, one, theirs, truth)
    except Difference as difference:
        return difference
    return None


def _compare_one(i: int, mine: Tensor, theirs: Sequence[Tensor], truth: Tensor) -> None:
    eager = theirs[-1]
    mine, eager, truth = mine.detach(), eager.detach(), truth.detach()
    if mine.dtype != eager.dtype or mine.shape != eager.shape:
        form = f"{mine.dtype} {tuple(mine.shape)} for {eager.dtype} {tuple(eager.shape)}"
        raise Difference("form", f"result {i}: {form}")
    if mine.dtype == torch.bool and mine.numel() and (most := int(_bytes(mine).max())) > 1:
        raise Difference("bytes", f"result {i}: a bool of byte {most}")
    if not mine.is_floating_point():
        wrong = mine != eager
        if wrong.any() and not any(torch.equal(mine, t) for t in theirs):
            place = tuple(wrong.nonzero()[0].tolist())
            told = f"{mine[place].item()} for {eager[place].item()}"
            raise Difference("integers", f"result {i} at {place}: {told}, {int(wrong.sum())} in all")
        return
    if truth.is_floating_point() and not _ill_conditioned(eager, truth):
        dtype = types.SimpleNamespace(dtype=str(mine.dtype).removeprefix("torch."))
        try:
            compare(dtype, [mine], [[t.detach()] for t in theirs], [truth.double()])  # type: ignore[arg-type]
        except Difference as difference:
            told = str(difference).removeprefix("result 0")
            raise Difference(difference.kind, f"result {i}{told}") from None


def _ill_conditioned(eager: Tensor, truth: Tensor) -> bool:
    """Whether eager itself is so far off that its rounding decides what comes out."""
    finite = eager.isfinite() & truth.isfinite()
    error = (eager[finite].double() - truth[finite]).norm()
    return float(error) > MOST_OFF * float(truth[finite].norm()) + MOST_OFF


def _bytes(t: Tensor) -> Tensor:
    return t.contiguous().view(-1).view(torch.uint8)
