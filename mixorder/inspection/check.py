"""Compare a model's results and gradients by mixorder with those by stock Inductor, and in eager float64.

All ways start from the same seed, the same buffers, and the same gradients of the results.
"""

from __future__ import annotations

import copy
import dataclasses
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import CannotExplain
from ..inductor.config import without_autograd_cache
from ..inductor.tensors import tree_leaves, tree_map_only
from ..ir.dtypes import short_dtype
from ..record import RegionRecord
from ..report import collect
from .accuracy import relative_error
from .backward import gradients, parameters_behind, roots_of
from .names import names_of
from .untouched import as_it_was, uncompiled

Compile = Callable[[Callable[..., Any]], Callable[..., Any]]
Results = dict[str, Tensor]
SEED = 0


@dataclasses.dataclass(frozen=True)
class Compared:
    """A gradient or a result, and the relative errors of both ways: ||g - ref|| / ||ref||."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    stock: float
    ours: float
    allowed: float

    @property
    def excess(self) -> float:
        """mixorder's error over what is allowed; infinite where it is not a number."""
        ratio = self.ours / self.allowed
        return ratio if math.isfinite(ratio) else math.inf

    @property
    def wrong(self) -> bool:
        """Whether dtypes do not explain the error."""
        return self.excess > 1


@dataclasses.dataclass(frozen=True)
class Checked:
    """What a comparison found, the worst first; what the reference is; regions fused; remarks."""

    compared: tuple[Compared, ...]
    reference: str
    regions: int
    notes: tuple[str, ...]


def check(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    stock: Compile,
    ours: Compile,
) -> Checked:
    """Raises `CannotExplain` for a model without a backward, or that runs its own."""
    run = _Run(uncompiled(function), args, kwargs)
    floor = run.measured()
    torch.compiler.reset()
    with without_autograd_cache():
        plain = run.compiled(stock)
        first, drawn = plain(), run.draws
        second = plain()
        with collect() as records:
            fused = run.compiled(ours)()
    torch.compiler.reset()
    spread = {name: relative_error(second[name], value.double()) for name, value in first.items()}
    notes = []
    if any(spread.values()):
        name = max(spread, key=lambda n: spread[n])
        notes.append(
            f"the model is not deterministic: two runs of stock differ, most in {name}, by {spread[name]:.1e}"
        )
    exact, reference, why = (first, "stock", ["it draws random numbers"]) if drawn else run.reference()
    notes += [f"errors are against {reference}, since {said}" for said in why]
    regions = sum(isinstance(record, RegionRecord) for record in records)
    return Checked(
        tuple(_compared(first, fused, exact, spread, floor, reference == "stock")),
        reference,
        regions,
        tuple(notes),
    )


def _compared(
    stock: Results, ours: Results, exact: Results, spread: Mapping[str, float], epsilon: float, is_stock: bool
) -> list[Compared]:
    """All results, the worst first. `epsilon`: of the least precise dtype that the model computes in. A
    gradient that is off by half or more is zero but for rounding, such as that of a key's bias."""
    no_digits, more = 0.5, 2.0
    wide = {name: exact[name].double() for name in stock if name in exact and name in ours}
    errors = {name: relative_error(stock[name], value) for name, value in wide.items()}
    digits = [e for e in errors.values() if e <= no_digits]
    typical = statistics.median(digits) if digits else 0.0
    rows = []
    for name, error in errors.items():
        if not math.isfinite(error):
            continue  # stock's overflows as well
        allowed = more * max(error, typical, spread[name]) + epsilon / 4
        if is_stock:
            allowed = max(8 * epsilon, 1e-5, more * spread[name])
        if error > no_digits:
            allowed = 10 * error
        value = stock[name]
        mine = relative_error(ours[name], wide[name])
        rows.append(Compared(name, short_dtype(value.dtype), tuple(value.shape), error, mine, allowed))
    return sorted(rows, key=lambda row: -row.excess)


class _Run:
    """A model and its inputs. `draws`: whether the last run drew random numbers."""

    def __init__(self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self.function, self.args, self.kwargs = function, args, kwargs
        self.names = names_of(function, args, kwargs)
        self.draws = False

    def compiled(self, compiler: Compile) -> Callable[[], Results]:
        call = compiler(self.function)
        return lambda: self(call)

    def __call__(self, call: Callable[..., Any]) -> Results:
        """Results and gradients by name, on the CPU. Changes neither buffers nor `.grad`."""
        leaves = [t for t in tree_leaves((self.args, self.kwargs)) if isinstance(t, Tensor)]
        with as_it_was(self.function, leaves):
            torch.manual_seed(SEED)
            states = _random_states()
            roots = roots_of(call(*self.args, **self.kwargs))
            if not roots:
                raise CannotExplain("there are no gradients to check: no result of the model needs one")
            self.draws = not all(map(torch.equal, states, _random_states()))
            into = parameters_behind(roots)
            try:
                leaf_gradients = gradients(roots, into, list(map(_tangent, roots)))
            except RuntimeError as error:
                if "second time" not in str(error):
                    raise
                raise CannotExplain("it runs a backward itself: pass the model and its inputs") from error
        results = {f"result {i}": root.detach().cpu() for i, root in enumerate(roots)}
        for i, (leaf, gradient) in enumerate(zip(into, leaf_gradients, strict=True)):
            if gradient is not None:
                results[self.names.get(id(leaf), f"tensor {i}")] = gradient.cpu()
        return results

    def measured(self) -> float:
        """Run the model in eager. Returns the epsilon of the least precise dtype of 16 bits or more in which
        the forward keeps something for the backward."""
        dtypes = {torch.float32}

        def keep(tensor: Tensor) -> Tensor:
            if tensor.is_floating_point() and tensor.dtype.itemsize >= 2:
                dtypes.add(tensor.dtype)
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
            self(self.function)
        return max(torch.finfo(dtype).eps for dtype in dtypes)

    def reference(self) -> tuple[Results, str, list[str]]:
        """Results in eager float64 or, where that cannot be, in the model's dtype; what they are; why."""
        if isinstance(self.function, nn.Module):
            try:
                return self._in_float64(self.function), "eager float64", []
            except Exception as error:  # such as a dtype that the model names itself, or too little memory
                why = f"in float64 it fails ({type(error).__name__}: {' '.join(str(error).split())[:120]})"
        else:
            why = "a function's parameters cannot be widened"
        return self(self.function), "eager in the model's dtype", [why]

    def _in_float64(self, model: nn.Module) -> Results:
        module = copy.deepcopy(model).double()

        def wide(tensor: Tensor) -> Tensor:
            if not tensor.is_floating_point():
                return tensor
            return tensor.detach().double().requires_grad_(tensor.requires_grad)

        args, kwargs = tree_map_only(Tensor, wide, (tuple(self.args), dict(self.kwargs)))
        return _Run(module, args, kwargs)(module)


def _tangent(root: Tensor) -> Tensor:
    """The gradient of a result: one for a loss; else random, the same in each dtype of 16 bits or more.
    (Ones would make the gradients before a last norm zero.)"""
    if root.numel() == 1:
        return torch.ones_like(root)
    generator = torch.Generator().manual_seed(SEED)
    drawn = torch.randn(root.shape, generator=generator)
    return (drawn.clamp(-8, 8) * 16).round().div(16).to(root.device, root.dtype)


def _random_states() -> list[Tensor]:
    on_gpu = torch.cuda.is_available() and torch.cuda.is_initialized()
    return [torch.get_rng_state(), *([torch.cuda.get_rng_state()] if on_gpu else [])]
