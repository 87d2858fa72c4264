"""`python -m mixorder explain ... --check`: a model's gradients by mixorder versus stock Inductor's."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from mixorder.cli.factory import Example

if TYPE_CHECKING:
    from mixorder.inspection.check import Checked

SLOW = "Without a GPU the kernels run in Triton's interpreter, which is slow: use small inputs."


def checked(example: Example, options: Mapping[str, Any], dynamic: bool | None, on_gpu: bool) -> Checked:
    """Compiles and runs the model both ways. Raises `CannotExplain`."""
    from mixorder.inspection.check import check

    function, inputs, named = example
    stock, ours = (_compiler(enabled, options, dynamic, on_gpu) for enabled in (False, True))
    return check(function, inputs, named, stock, ours)


def _compiler(
    enabled: bool, options: Mapping[str, Any], dynamic: bool | None, on_gpu: bool
) -> Callable[..., Any]:
    import torch

    if on_gpu:
        given = {**options, "mixorder": enabled, "fx_graph_cache": False}
        return functools.partial(torch.compile, options=given, dynamic=dynamic)
    from mixorder.options import Options
    from mixorder.plugin import compile_for_interpreter

    least = options.get("mixorder_min_numel", Options.min_numel)
    backend = compile_for_interpreter(Options(enabled, interpret=True, min_numel=least))
    return functools.partial(torch.compile, backend=backend, dynamic=dynamic)


def text(result: Checked) -> str:
    """The worst gradients, and the verdict."""
    from mixorder.inspection.table import filled, table

    rows = [["gradient of, or result", "dtype", "shape", "stock", "mixorder", "allowed"]]
    shown = 12
    for compared in result.compared[:shown]:
        shape = " x ".join(map(str, compared.shape)) or "a number"
        errors = [f"{error:.1e}" for error in (compared.stock, compared.ours, compared.allowed)]
        rows.append([compared.name, compared.dtype, shape, *errors])
    more = len(result.compared) - shown
    lines = [
        filled(f"Errors of gradients and results: ||g - ref|| / ||ref||, ref from {result.reference}."),
        "stock: Inductor without mixorder.",
        "allowed: the largest error of mixorder's that counts as rounding.",
        filled("The first row is the worst: its error is the largest, compared with what is allowed."),
        table(rows),
        *([f"  and {more} more"] if more > 0 else []),
        *(filled(f"note: {note}") for note in result.notes),
        filled(verdict(result)),
    ]
    return "\n".join(lines)


def verdict(result: Checked) -> str:
    """One line."""
    regions = ("1 region" if result.regions == 1 else f"{result.regions} regions") + " fused"
    wrong = [compared.name for compared in result.compared if compared.wrong]
    if wrong:
        of = ", ".join(wrong[:5])
        return f"FAILED: rounding does not explain the errors of {of} ({len(wrong)} in all; {regions})."
    if not result.regions:
        return (
            "FAILED: nothing was fused, so nothing was checked (--min-numel 0 fuses small tensors as well)."
        )
    same = "as exact as stock's" if result.reference != "stock" else "stock's, up to rounding"
    return f"OK: all {len(result.compared)} are {same} ({regions})."


def status(result: Checked) -> int:
    """0 if something was fused and all errors are explained, else 1."""
    return int(not result.regions or any(compared.wrong for compared in result.compared))
