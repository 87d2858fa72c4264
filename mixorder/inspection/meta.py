"""Models on the meta device, whose tensors have sizes and no data, as fake tensors of a CPU.

Nothing is allocated and nothing computed, so a model of any size can be explained on any machine.
"""

from __future__ import annotations

import contextlib
import copy
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import CannotExplain
from ..inductor.tensors import NEED_VALUES, FakeTensorMode, tree_map_only
from .calls import modules_of

_TORCH = str(Path(torch.__file__).parent)


def has_no_data(tensors: Sequence[Tensor]) -> bool:
    return any(t.is_meta for t in tensors)


def faked(function: Callable[..., Any], inputs: Any, device: str = "cpu") -> tuple[Callable[..., Any], Any]:
    """A copy of a module and of a tree of inputs, with one fake tensor of `device` for each tensor.

    A tensor that occurs twice is one fake tensor. Raises `CannotExplain` for a function that is no module and
    uses one on the meta device, which cannot be copied.
    """
    if not isinstance(function, nn.Module) and any(
        has_no_data([*module.parameters(), *module.buffers()]) for _, module in modules_of(function)
    ):
        raise CannotExplain(
            "mixorder cannot analyse a function that uses a model on the meta device: pass the model and its "
            "inputs, or use tensors on the CPU"
        )
    mode = FakeTensorMode(allow_non_fake_inputs=True)  # states of random numbers are never fake
    known: dict[int, Tensor] = {}

    def fake(tensor: Tensor) -> Tensor:
        if id(tensor) not in known:
            with mode, torch.no_grad():
                like = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=device)
            if isinstance(tensor, nn.Parameter):
                like = nn.Parameter(like, tensor.requires_grad)
            known[id(tensor)] = like if like.requires_grad else like.requires_grad_(tensor.requires_grad)
        return known[id(tensor)]

    if isinstance(function, nn.Module):
        module_copy = copy.deepcopy(function)
        for module in module_copy.modules():
            for held in (module._parameters, module._buffers):
                held.update({name: fake(t) for name, t in held.items() if t is not None})
        function = module_copy
    return function, tree_map_only(Tensor, fake, inputs)


@contextlib.contextmanager
def without_values() -> Iterator[None]:
    """Raise `CannotExplain`, with the source line, where a model uses the value of a tensor without data."""
    try:
        yield
    except Exception as error:  # dynamo wraps some errors of its own in others
        chain = [error]
        while (cause := chain[-1].__cause__ or chain[-1].__context__) and isinstance(cause, Exception):
            chain.append(cause)
        if not any(isinstance(link, NEED_VALUES) for link in chain):
            raise
        raise CannotExplain(
            f"the model depends on the value of a tensor{_place(error)}, but the meta device has only sizes: "
            "use tensors on the CPU"
        ) from None  # the other errors have some 60 lines, and the place is in the message


def _place(error: BaseException) -> str:
    """The innermost line of the traceback that is in a file and not in torch or here."""
    frames = traceback.extract_tb(error.__traceback__)
    user_frames = [f for f in frames if not f.filename.startswith((_TORCH, str(Path(__file__).parent), "<"))]
    return f" at {user_frames[-1].filename}:{user_frames[-1].lineno}" if user_frames else ""
