"""mixorder: `torch.compile(model, options={"mixorder": True})` trains norms in one memory pass.

Importing this package registers the options and the pass with torch, and nothing else. It runs at
the end of every `import torch`, so it must not import torch internals, triton or sympy.
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

    Runs the model once, forward and backward, as `torch.compile` has captured it. No GPU is needed, and none
    of mixorder's kernels runs: for CPU tensors the plan is for an H200. A module and inputs on the meta
    device do as well, at any size: nothing is computed then. Parameters, their `.grad`, a module's buffers
    and the random state are as before; what dynamo has compiled is dropped, as by `torch._dynamo.explain`.
    The backward is that of `.loss`, where the output has one, or of every output; or the one that a function
    runs itself. What an optimizer in a function writes to parameters stays.

    `options` are those of `torch.compile`, such as `{"mixorder_min_numel": 0}`; `dynamic` is torch's.
    Raises ValueError for an option that there is not, `mixorder.errors.CannotExplain` where there is no
    triton or a model on the meta device asks for a value, and whatever the model raises.
    """
    from mixorder.inspection.capture import explain as explain_inputs

    return explain_inputs(model_or_fn, options, dynamic)


_register()
