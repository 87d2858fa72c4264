"""Compares results with those of other compilers and of eager float64.

In: a program, lists of tensors, and per tensor the class of its values (`operators.py`). Out: nothing, or a
`Difference` is raised. Integers, bools and other values computed without rounding must be right to the
last bit; numbers must be as exact as the others'.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from .programs import NARROWEST, Program

Results = list[Tensor]
PLACES, PLACES_OF_FLOAT64 = 16, 256  # last places by which a result may be off, besides others' errors
BITS = NARROWEST | {"float8_e4m3fn": 4, "float8_e5m2": 3}


class Difference(AssertionError):
    """mixorder's results are wrong; `kind` says in which way."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def same_bits(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape:
        return False
    a, b = (t.contiguous().view(-1).view(torch.uint8) for t in (one, other))
    return torch.equal(a, b)


def compare(
    program: Program,
    ours: Results,
    others: Sequence[Results],
    exact: Results,
    strides: bool = False,
    letters: Sequence[str] | None = None,
) -> None:
    """Raises `Difference` where mixorder's results are less exact than the others, or have a form that none
    of them has. Where one of the others differs from float64 in its class of value (nan, an infinity, a
    number), has a large error, or bytes other than 0 and 1 for truth values, mixorder's result may, too.
    `letters`: the results' classes.
    """
    for i, (mine, truth) in enumerate(zip(ours, exact, strict=True)):
        letter = letters[i] if letters else ""
        theirs = [other[i] for other in others]
        _compare_form(i, mine, theirs, strides)
        if not mine.numel():
            continue
        truth, *theirs = (t.reshape(mine.shape) for t in (truth, *theirs))  # Inductor may lose dims of size 1
        if _has_other_bytes(mine) and not any(map(_has_other_bytes, theirs)):
            raise Difference("bytes", f"result {i}: a truth value is a byte other than 0 and 1")
        if letter in ("i", "b", "z", "q") or not (letter or mine.is_floating_point()):
            _compare_exactly(i, mine, theirs)
            continue
        eps, floor = _allowed(program, mine, letter)
        mine, truth, theirs = mine.double(), truth.double(), [t.double() for t in theirs]
        _compare_classes(i, mine, theirs, truth)
        finite = truth.isfinite() & mine.isfinite()
        for other in theirs:
            finite &= other.isfinite()
        values = truth[finite]
        if not values.numel():
            continue
        errors = [(t[finite].double() - values).abs() for t in (mine, *theirs)]
        _compare_errors(i, errors, values, eps, floor)


def _allowed(program: Program, mine: Tensor, letter: str) -> tuple[float, float]:
    """The allowed error as a share of the largest number, and the allowed size of a sum whose value is 0."""
    if letter == "a" and not mine.is_floating_point():
        return 0.0, 1.0
    dtype = "float64" if letter == "d" else program.dtype
    # There is nothing more exact to compare float64 with, and eager's errors seem to be none.
    places = PLACES_OF_FLOAT64 if dtype == "float64" else PLACES
    eps = places * 2.0 ** -NARROWEST[dtype]
    if letter == "a":
        own = str(mine.dtype).removeprefix("torch.")
        eps = max(eps, (2 if mine.dtype.itemsize == 1 else PLACES) * 2.0 ** -BITS[own])
    exact = dtype == "float64" and mine.dtype == torch.float64
    return eps, places * 2.0 ** -NARROWEST["float64" if exact else "float32"]


def _compare_exactly(i: int, mine: Tensor, theirs: Sequence[Tensor]) -> None:
    """Elements on which the others disagree are not compared."""
    if mine.is_floating_point():
        mine, theirs = (mine.double(), [t.double() for t in theirs])
    wrong = _unequal(mine, theirs[0])
    for other in theirs[1:]:
        wrong &= ~_unequal(other, theirs[0])
    if wrong.any():
        place = tuple(wrong.nonzero()[0].tolist())
        raise Difference(
            "values",
            f"result {i} at {list(place)}: {mine[place].item()} for {theirs[0][place].item()},"
            f" and {int(wrong.sum())} in all, where no rounding is",
        )


def _unequal(one: Tensor, other: Tensor) -> Tensor:
    return (one != other) & ~((one != one) & (other != other))


def _compare_classes(i: int, mine: Tensor, theirs: Sequence[Tensor], truth: Tensor) -> None:
    """The sign of an infinity depends on rounding where a factor is close to zero: up to twice as many as the
    others' may be wrong. All else must be right wherever the others are."""
    wrong = classes(mine) != classes(truth)
    for other in theirs:
        wrong &= classes(other) == classes(truth)
    negated = [(t == -truth) & truth.isinf() for t in (mine, *theirs)]
    if int(negated[0].sum()) <= 2 * max(int(t.sum()) for t in negated[1:]):
        wrong &= ~negated[0]
    if wrong.any():
        place = wrong.nonzero()[0].tolist()
        raise Difference(
            "class",
            f"result {i} at {place}: {mine[tuple(place)].item()} for {truth[tuple(place)].item()},"
            f" and {int(wrong.sum())} in all",
        )


def _has_other_bytes(t: Tensor) -> bool:
    """Whether a truth value is a byte other than 0 and 1."""
    return t.dtype == torch.bool and int(t.contiguous().view(torch.uint8).max()) > 1


def _compare_form(i: int, mine: Tensor, theirs: Sequence[Tensor], strides: bool) -> None:
    """Dtype and shape must be those of one of the others. `strides`: they must be the others', too."""
    alike = [mine.dtype == t.dtype and mine.shape == t.shape for t in theirs]
    if not any(alike) or any(mine.numel() != t.numel() for t in theirs):
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


def errors_of(
    program: Program, ours: Results, stock: Results, exact: Results
) -> tuple[tuple[float, float], ...]:
    """Relative errors of gradients that are all numbers and not zero."""
    if not program.backward:
        return ()
    found = []
    for mine, theirs, truth in zip(ours, stock, exact, strict=True):
        if not mine.is_floating_point() or mine.dtype.itemsize == 1:
            continue
        size = float(truth.norm()) if truth.numel() else 0.0
        if size > 0 and math.isfinite(size):
            found.append(tuple(float((t.double() - truth).norm()) / size for t in (mine, theirs)))
    return tuple(e for e in found if all(map(math.isfinite, e)))
