"""mixorder: `torch.compile(model, options={"mixorder": True})` makes the backward of norms faster.

Importing this package registers the options and the pass with torch, and does nothing else. Each
`import torch` ends by importing it, so it must not import torch internals, triton or sympy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from mixorder._autoload import register as _register

if TYPE_CHECKING:
    from mixorder.inspection.explanation import Report

__version__ = "0.2.0"
__all__ = ["explain"]


def explain(
    model_or_fn: Callable[..., Any],
    *,
    options: Mapping[str, Any] | None = None,
    dynamic: bool | None = None,
) -> Callable[..., Report]:
    """`explain(model)(*inputs)`: what mixorder does to the model's forward and backward, as a `Report`.

    Runs the model once, forward and backward, as `torch.compile` captures it. No GPU is needed, and no kernel
    of mixorder runs. For CPU tensors, schedules are chosen for an H200. A module and inputs on the meta
    device work, too, at any size, since nothing is computed there. The backward starts at `.loss` if the
    output has one, and otherwise at every output; a function may also run its own backward. Parameters, their
    `.grad`, a module's buffers and the random state are restored, but not what an optimizer in a function
    writes to parameters. Compiled code of dynamo is dropped, as by `torch._dynamo.explain`.

    `options` and `dynamic` are those of `torch.compile`, such as `{"mixorder_min_numel": 0}`. Raises
    ValueError for an unknown option, and `mixorder.errors.CannotExplain` if there is no triton, or if a model
    on the meta device needs the value of a tensor. Exceptions of the model are raised as they are.
    """
    from mixorder.inspection.capture import explain as explain_inputs

    return explain_inputs(model_or_fn, options, dynamic)


_register()
