"""A case of the family, compiled by mixorder versus stock Inductor: regions, strides, errors."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from graphs import bf16, f32
from support.cases import CASES, Case, Compile, Example, found_in, relative_errors

from mixorder.report import collect


def check_case(
    case: Case,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    device: str,
    ours: Compile,
    stock: Compile,
    expected: Sequence[tuple[list[tuple[str, int, int]], list[str]]] = (),
) -> None:
    """Assert that `ours`, with no least size of a region, fuses what the case says, as exactly as `stock`.

    `expected`: what may be fused instead, and the reasons of what is not."""
    example = Example(case, shape, dtype, device)
    with collect() as records:
        results = example.step(ours)()
    if torch.__version__.startswith("2.11.") and (device, dtype, case) == (
        "cpu",
        f32,
        CASES["transpose after"],
    ):
        assert found_in(records) == ([], ["layout"])  # this torch hands its gradient over transposed
        return
    found, wanted = found_in(records), expected or [case.expected(shape, 0, device)]
    assert found in wanted, (found, wanted)
    # Eager rounds float32 as stock does, and need not be compiled.
    eager = device == "cpu" and dtype == f32 and not case.random
    plain = example.step((lambda function: function) if eager else stock)()
    if eager and list(map(order, results)) != list(map(order, plain)):
        plain = example.step(stock)()  # torch 2.14: its group norm's order is not eager's
    exact = example.exact(stock)
    for mine, theirs in zip(results, plain, strict=True):
        assert mine.dtype == theirs.dtype
        # Inductor pads the rows of a buffer at some sizes: the order of the dims is what is given.
        assert order(mine) == order(theirs), (mine.shape, mine.stride(), theirs.stride())
    # A kernel rounds at other places; a chain of matmuls adds an error of the stored dtype.
    noise = max(torch.finfo(dtype).eps / 4, torch.finfo(f32).eps)
    errors = relative_errors(results, exact), relative_errors(plain, exact)
    for mine, theirs, truth in zip(*errors, exact, strict=True):
        # The error of each of a few sums is that of all terms, which may add up to less.
        cancelled = 8 if truth.numel() <= 4 else 1
        assert mine <= 1.25 * theirs + cancelled * noise
        assert theirs < (0.1 if dtype == bf16 else 1e-4)  # else the reference is one of something else


def order(t: torch.Tensor) -> list[int]:
    """The dims of more than one element, from the outermost in memory to the innermost."""
    return sorted((d for d in range(t.dim()) if t.shape[d] > 1), key=lambda d: -t.stride(d))
