"""A family of the corpus in a recipe, trained by stock Inductor and mixorder, in a process of `lab/pool.py`.

A step is forward and backward. Both ways share parameters and inputs. Building the model, tracing and
compiling take a processor only and happen side by side with other processes; the backward is compiled with
the forward, before anything runs. All else happens in a `Turn` on the GPU, as does what Inductor times while
it compiles, such as padded matrix products.

A step of training is forward, backward and AdamW. Each way then has weights of its own, which start as the
other's, and compiles with caches of its own.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import itertools
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import torch
from support.compilers import ahead_of_time
from support.sources import told
from torch import Tensor, nn
from torch._functorch import config as functorch
from torch._inductor import config as inductor
from torch._inductor.runtime import benchmarking
from torch._inductor.utils import fresh_cache

from mixorder.errors import Decline, MixorderError
from mixorder.inspection.accuracy import largest_error
from mixorder.inspection.backward import gradients, roots_of
from mixorder.report import RegionRecord, collect

from .duel import MOST_TOLD
from .launches import is_library, moved
from .matches import Match, Side
from .processes import Turn, cpu_seconds
from .stopwatch import Stopwatch, here, stopwatch

MOST_LOCKED_S = 90
SEED = 1  # of a step
WARM_UP, STEPS, KERNELS = 3, 12, 1000
TRAINED = 30  # steps of training that are timed
RATE = 1e-4  # of learning
# Profiles of each way: as few as bring the standard error of the ratio below `CERTAIN`, with limits. Four
# were off by 1% where most of the time goes to matrix products (H200), and a model is judged at 0.5%.
LEAST_PROFILES, MOST_PROFILES, CERTAIN, MOST_PROFILING_S = 4, 40, 0.0015, 25
# Steps ahead of each profile, of the same way. Without them the first profile took 3 to 6% longer where most
# of the time goes to matrix products (H200): what ran before decides the clock.
SETTLING = 2
NO_DIGITS = 0.5  # a gradient that is off by more is zero but for rounding, such as that of a key's bias
ADD_BYTES, ADDS = 3 << 28, 9  # of an add whose speed is that of the memory, and how often it runs
LEAST_ROWS = 2  # of an embedding: ids are drawn below the least


@dataclasses.dataclass(frozen=True)
class Task:
    """A family and a recipe of the corpus, the device, the file of the `Turn`; `exact`: with gradient
    errors; `profile`: with the bytes of kernels; `train`: with an optimizer, and then without errors."""

    family: str
    recipe: str
    device: str
    turn: str
    exact: bool = True
    profile: bool = False
    train: bool = False


@dataclasses.dataclass
class Outcome:
    """What a process answers. `lost`: it should be replaced."""

    match: Match
    lost: bool = False


def work(task: Task) -> Outcome:
    """Runs in a process of the pool. Never raises: errors are in the record."""
    match = Match(task.family, task.recipe)
    outcome = Outcome(match)
    turn = Turn(task.turn, MOST_LOCKED_S)
    started = time.perf_counter()
    example = None
    try:
        example = Example(task)
        with candidates_in(turn):
            play(example, match, turn)
    except Exception as error:  # the next model goes on
        match.status, match.message = "failed" if example else "absent", told(error)[:MOST_TOLD]
        outcome.lost = example is not None  # a new process has all memory free
    finally:
        turn.give_back()
        torch._dynamo.reset()
        torch.set_float32_matmul_precision("highest")
    match.on = here(task.device)
    outcome.lost |= "liger" in task.family  # it changes transformers for good
    match.waited_s, match.seconds = round(turn.waited_s, 2), round(time.perf_counter() - started, 2)
    return outcome


@contextlib.contextmanager
def candidates_in(turn: Turn) -> Iterator[None]:
    """Let Inductor time candidates, such as a padded matrix product, in this process's turn on the GPU."""
    times = type(benchmarking.benchmarker)
    original = times.benchmark_gpu

    def benchmark_gpu(*args: Any, **kwargs: Any) -> Any:
        if turn.held:
            return original(*args, **kwargs)
        with turn:
            return original(*args, **kwargs)

    with mock.patch.object(times, "benchmark_gpu", benchmark_gpu):
        yield


# The second way would else have symbolic sizes at once where the first one has had others.
@torch._dynamo.config.patch(automatic_dynamic_shapes=False)
def play(example: Example, match: Match, turn: Turn) -> None:
    """Fill in the record; what was filled in before an exception stays."""
    watch = stopwatch(example.task.device)
    match.parameters = sum(p.numel() for p in example.model.parameters())
    # Either is stated, since torch 2.15 compiles again where "highest" is first the default and then stated.
    torch.set_float32_matmul_precision("high" if example.task.recipe == "fp32" else "highest")  # TF32
    examples = {"stock": example, "ours": Example(example.task) if example.task.train else example}
    with turn, _step(match, "move", watch):
        for instance in {id(e): e for e in examples.values()}.values():
            instance.move()
    if example.task.train:
        match.items, match.unit = example.batch
        _compile_small(example.task, turn)
    way = Training if example.task.train else Trainer
    trainers = {name: way(instance, match, name, turn) for name, instance in examples.items()}
    for name, trainer in trainers.items():
        held = turn.held_s
        trainer.first()
        watch.wait()
        watch.free()
        turn.give_back()
        match.locked[f"first_{name}"] = round(turn.held_s - held, 3)
    with turn:
        _measured(match, trainers, watch)
        if example.task.profile:
            with _step(match, "profile", watch):
                _profile(match, trainers, watch)
        if example.task.exact:
            with _step(match, "errors", watch):
                _errors(match, example, trainers, watch)
        trainers.clear()
        for instance in examples.values():
            instance.clear()
        watch.free()


def _compile_small(task: Task, turn: Turn) -> None:
    """Compile something small in both ways: the first compile of a process takes seconds longer."""
    small = Example(dataclasses.replace(task, family="loops/tiny", exact=False))
    with turn:
        small.move()
    for name in ("stock", "ours"):
        Trainer(small, Match("", ""), name, turn).first()
    turn.give_back()
    torch._dynamo.reset()  # else sizes that differ from these become symbolic


@contextlib.contextmanager
def _step(match: Match, name: str, watch: Stopwatch) -> Iterator[None]:
    started = time.perf_counter()
    yield
    watch.wait()
    match.locked[name] = round(time.perf_counter() - started, 3)


class Example:
    """A model in its recipe and its inputs, of random numbers; the same for the same task. `plain`: the model
    as built, for the reference."""

    def __init__(self, task: Task) -> None:
        from . import families
        from .recipes import cast, step

        torch.manual_seed(0)
        self.task = task
        model, inputs = families.build(task.family, "cpu")
        rows, classes = _rows(model), getattr(model, "classes", LEAST_ROWS)
        self.inputs = {name: _drawn(x, rows, classes) for name, x in inputs.items()}
        self.plain = copy.deepcopy(model) if task.exact else None
        cast(model, task.recipe)
        self.model = step(model, task.recipe)

    def move(self) -> None:
        """To the device."""
        from .recipes import mark

        device = self.task.device
        self.model = self.model.to(device)
        self.inputs = {n: x.to(device) if isinstance(x, Tensor) else x for n, x in self.inputs.items()}
        mark(self.inputs, self.task.recipe)

    @property
    def batch(self) -> tuple[int, str]:
        """How much a step trains on, and of what."""
        first = next(iter(self.inputs.values()))
        text = first.dtype is torch.long and first.ndim == 2
        return (first.numel(), "tokens") if text else (len(first), "images")

    @property
    def parameters(self) -> list[nn.Parameter]:
        return [p for p in self.model.parameters() if p.requires_grad]

    def exact(self) -> list[Tensor | None]:
        """The parameters' gradients from eager in float32, without TF32, autocast or recomputation."""
        from .recipes import step

        assert self.plain is not None
        plain = self.plain.to(self.task.device)
        with torch.no_grad():
            theirs = itertools.chain(plain.parameters(), plain.buffers())
            mine = itertools.chain(self.model.parameters(), self.model.buffers())
            for tensor, value in zip(theirs, mine, strict=True):
                tensor.copy_(value)  # as rounded
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("highest")
        try:
            roots = roots_of(step(plain, "fp32")(**self.inputs))
            return list(gradients(roots, [p for p in plain.parameters() if p.requires_grad]))
        finally:
            torch.set_float32_matmul_precision(before)  # of the ways: compiled code looks at it when it runs

    def clear(self) -> None:
        self.model, self.plain, self.inputs = nn.Module(), None, {}


def _rows(model: nn.Module) -> int:
    """What ids are drawn below: the rows of the input embedding, where a model says which that is, else of
    its smallest one."""
    with contextlib.suppress(Exception):
        return int(model.get_input_embeddings().num_embeddings)  # type: ignore[operator]
    rows = [m.num_embeddings for m in model.modules() if isinstance(m, nn.Embedding)]
    return min(rows, default=LEAST_ROWS)


def _drawn(x: Any, rows: int, classes: int) -> Any:
    """Random numbers for a tensor: ids (sequences, tokens), labels of samples, or floating-point numbers."""
    if not isinstance(x, Tensor):
        return x
    if x.is_floating_point():
        return torch.randn_like(x)
    return torch.randint_like(x, rows if x.ndim > 1 else classes) if x.dtype is torch.long else x


class Trainer:
    """One way: a compiled model. Call it for a step, which gives the parameters' gradients."""

    def __init__(self, example: Example, match: Match, name: str, turn: Turn) -> None:
        self.example, self.turn = example, turn
        self.side: Side = getattr(match, name)
        self.compile = ahead_of_time(example.task.device, name == "ours")
        self.compiled = torch.compile(example.model, backend=self._backend)
        self.losses: list[Tensor] = []  # of training, on the device: reading one would wait for it

    def _backend(self, gm: Any, inputs: Any) -> Callable[..., Any]:
        """Compiles forward and backward without the turn, and takes it for the run that follows."""
        self.turn.give_back()
        started = cpu_seconds()
        told = inductor.patch(benchmark_kernel=self.example.task.profile)  # of bytes; kernels stay the same
        with functorch.patch(force_non_lazy_backward_lowering=True), told:
            call = self.compile(gm, inputs)
        self.side.compile_s = round(self.side.compile_s + cpu_seconds() - started, 2)
        self.side.graphs += 1
        self.turn.take()
        return call

    def first(self) -> None:
        """The step that compiles. Raises a fault of mixorder's that a user only sees as a warning."""
        failures: list[MixorderError] = []
        with collect(failures) as records:
            self()
        if failures:
            raise failures[0]
        regions = [record for record in records if isinstance(record, RegionRecord)]
        self.side.fused = len(regions)
        self.side.declined = dict(Counter(r.reason.value for r in records if isinstance(r, Decline)))

    def __call__(self) -> Sequence[Tensor | None]:
        torch.manual_seed(SEED)  # for dropout
        roots = roots_of(self.compiled(**self.example.inputs))
        return gradients(roots, self.example.parameters)

    @property
    def held(self) -> int:
        """Bytes between steps that count as part of a step's peak."""
        return 0


class Training(Trainer):
    """One way with an optimizer. Call it for a step of training."""

    def __init__(self, example: Example, match: Match, name: str, turn: Turn) -> None:
        super().__init__(example, match, name, turn)
        self.optimizer = torch.optim.AdamW(example.parameters, lr=RATE, fused=True)

    def first(self) -> None:
        """With empty caches; also notes its seconds, without waits for the GPU."""
        started, waited = time.perf_counter(), self.turn.waited_s
        with fresh_cache():
            super().first()
            stopwatch(self.example.task.device).wait()
        seconds = time.perf_counter() - started - (self.turn.waited_s - waited)
        self.side.first_s = round(seconds, 2)

    def __call__(self) -> Sequence[Tensor | None]:
        torch.manual_seed(len(self.losses))  # other masks of dropout in each step, the same in both ways
        (loss,) = roots_of(self.compiled(**self.example.inputs))
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.losses.append(loss.detach())
        return []

    @property
    def held(self) -> int:
        """Of weights, buffers, the optimizer's state and the batch."""
        states = (x for state in self.optimizer.state.values() for x in state.values())
        model, batch = self.example.model, self.example.inputs.values()
        kept = [*model.parameters(), *model.buffers(), *states, *batch]
        return sum(x.nbytes for x in kept if isinstance(x, Tensor))


def _measured(match: Match, trainers: dict[str, Trainer], watch: Stopwatch) -> None:
    sides = {name: trainer.side for name, trainer in trainers.items()}
    with _step(match, "times", watch):
        watch.steps(trainers, WARM_UP)
        count = TRAINED if match.items else STEPS
        for name, samples in watch.steps(trainers, count).items():
            quartiles = statistics.quantiles(samples, n=4)
            side = sides[name]
            side.low, side.step_ms, side.high = (round(ms, 4) for ms in quartiles)
    with _step(match, "peak", watch):
        for name, trainer in trainers.items():
            sides[name].losses = [loss.item() for loss in trainer.losses]
            peak = watch.peak(trainer)
            sides[name].peak = None if peak is None else peak + trainer.held
    with _step(match, "kernels", watch):
        until = time.perf_counter() + MOST_PROFILING_S
        for n in range(MOST_PROFILES):
            for name in list(trainers)[:: -1 if n % 2 else 1]:
                for _ in range(SETTLING):
                    trainers[name]()
                _count(sides[name], watch.launched(trainers[name]))
            if n + 1 >= LEAST_PROFILES and (_certain(match) or time.perf_counter() > until):
                break


def _certain(match: Match) -> bool:
    """Whether more profiles would tell nothing: the ratio is known, or the device has no profiler."""
    error = match.uncertainty
    return error is None or error < CERTAIN


def _count(side: Side, kernels: Sequence[tuple[str, float]]) -> None:
    """Take the milliseconds of a step's kernels into a record; of several profiles the medians, and the means
    of each kernel."""
    if not kernels:
        return
    totals: dict[str, list[float]] = {}
    for name, ms in kernels:
        total = totals.setdefault(name, [0, 0.0])
        total[0] += 1
        total[1] += ms

    side.launches = len(kernels)
    side.rounds.append(round(sum(ms for _, ms in kernels), 4))
    side.library_rounds.append(round(sum(ms for name, ms in kernels if is_library(name)), 4))
    side.gpu_ms, side.library_ms = map(statistics.median, (side.rounds, side.library_rounds))
    longest = sorted(totals.items(), key=lambda item: -item[1][1])[:KERNELS]
    weight = 1 / len(side.rounds)
    before = {name: ms for name, (_, ms) in side.kernels.items()}
    side.kernels = {
        name: [n, round(ms * weight + before.get(name, ms) * (1 - weight), 4)] for name, (n, ms) in longest
    }


def _profile(match: Match, trainers: dict[str, Trainer], watch: Stopwatch) -> None:
    """What a profile adds to the kernels' times: their bytes in a step, and the speed of an add."""
    for name, trainer in trainers.items():
        with moved(getattr(match, name).moved):
            trainer()
    if (add := watch.limit(ADD_BYTES)) is not None:
        add()
        times = [ms for _ in range(ADDS) for _, ms in watch.launched(add)]
        match.add = ADD_BYTES / (1e3 * statistics.median(times)) if times else None


def _errors(match: Match, example: Example, trainers: dict[str, Trainer], watch: Stopwatch) -> None:
    """Of the parameters' gradients: the median and the largest. A model that draws random numbers, or that
    eager cannot run, is compared with stock."""
    torch.manual_seed(SEED)
    state = watch.random_state()
    stock = trainers["stock"]()
    truth, match.reference = None, "stock: it draws random numbers"
    if torch.equal(state, watch.random_state()):
        try:
            truth, match.reference = example.exact(), "float32"
        except Exception as error:
            match.reference = f"stock: {told(error)[:200]}"
    ours = trainers["ours"]()
    for name, computed in (("stock", stock), ("ours", ours)):
        exact = stock if truth is None else truth
        errors = [
            largest_error([(g, t.double())])
            for g, t in zip(computed, exact, strict=True)
            if g is not None and t is not None
        ]
        digits = [e for e in errors if e < NO_DIGITS] or [0.0]
        getattr(match, name).errors = [statistics.median(digits), max(digits)]
    watch.free()
