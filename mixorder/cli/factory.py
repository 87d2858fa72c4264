"""The user's model on the command line: `package.module:factory`, called for a model and its inputs."""

from __future__ import annotations

import importlib
import inspect
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mixorder.cli.parser import Parser
from mixorder.errors import in_a_line

if TYPE_CHECKING:
    from torch import Tensor

HELP = """\
a factory is a function without arguments that returns a model (or function) and its inputs:

  # train.py
  def factory():
      model = torch.nn.TransformerEncoderLayer(1024, 16, batch_first=True).bfloat16()
      return model, torch.randn(8, 1024, 1024, dtype=torch.bfloat16, requires_grad=True)

A dict at the end holds keyword arguments: `return model, {"input_ids": tokens, "labels": tokens}`. While the
factory runs, new tensors are on the device by default. The backward starts at `.loss` if the model's output
has one, and otherwise at every output."""

Example = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]
"""A model, and its positional and keyword arguments."""


def add_factory(parser: Parser) -> None:
    """The argument that names the factory."""
    given = "returns a model and its inputs; path/file.py:factory works, too"
    parser.add_argument("factory", metavar="package.module:factory", help=given)


def make(parser: Parser, name: str, device: str) -> Example:
    """The model and its inputs on a device; ends with status 2 if the name is not that of a factory."""
    import torch

    module, _, attribute = name.rpartition(":")
    if not module or not attribute:
        example = "such as train:factory for `factory` in train.py"
        parser.error(f"{name!r} is not package.module:factory, {example}")
    if module.endswith(".py") or "/" in module:
        file = Path(module)
        if not file.is_file() and not file.with_suffix(".py").is_file():
            parser.error(f"there is no file {module}")
        sys.path.insert(0, str(file.parent.resolve()))
        module = file.name.removesuffix(".py")
    try:
        factory = importlib.import_module(module)
        for part in attribute.split("."):
            factory = getattr(factory, part)
    except ImportError as error:
        parser.error(f"cannot import {module!r} from here: {error}")
    except AttributeError:
        parser.error(f"{module!r} has no {attribute!r}")
    except Exception as error:  # of the user's code
        parser.error(f"{module!r} fails when it is imported: {_told(error)}")
    if not callable(factory):
        parser.error(f"{name} is of type {type(factory).__name__}; it must be a function that gives a model")
    if not _takes_nothing(factory):
        parser.error(f"{name} takes arguments; a factory takes none")
    with torch.device(device):
        try:
            made = factory()
        except Exception as error:  # of the user's code
            parser.error(f"{name} fails: {_told(error)}")
    function, *inputs = made if isinstance(made, (tuple, list)) else (made,)
    if not callable(function):
        parser.error(
            f"{name} gave a value of type {type(function).__name__}; it must give a model, then its inputs"
        )
    named = dict(inputs.pop()) if inputs and isinstance(inputs[-1], Mapping) else {}
    return _on(function, device), tuple(_on(value, device) for value in inputs), _on(named, device)


def _told(error: Exception) -> str:
    """A line about an error of the user's code, with the place where it was raised."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{in_a_line(error)} ({frame.filename}:{frame.lineno})"


def _takes_nothing(factory: Callable[..., Any]) -> bool:
    """Whether it can be called without arguments; True if that is unknown."""
    try:
        inspect.signature(factory).bind()
    except TypeError:
        return False
    except ValueError:  # it has no signature
        pass
    return True


def _on(value: Any, device: str) -> Any:
    """A module or tensor, moved to the device; other values unchanged."""
    import torch

    from mixorder.inductor.tensors import tree_map_only

    if isinstance(value, torch.nn.Module):
        moved = any(t.device.type != device for t in (*value.parameters(), *value.buffers()))
        return value.to(device) if moved else value

    def move(tensor: Tensor) -> Tensor:
        if tensor.device.type == device:
            return tensor
        return tensor.detach().to(device).requires_grad_(tensor.requires_grad)

    return tree_map_only(torch.Tensor, move, value)
