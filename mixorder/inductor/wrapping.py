"""Replaces functions of torch by wrappers, each once."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, TypeVar

T = TypeVar("T")
Function = Callable[..., Any]


def wrap(owner: Any, path: str, wrapper: Function) -> bool:
    """Replace the function at a dotted path of a module or class by `wrapper`, which gets the original before
    the arguments, unless it is wrapped already.

    False where there is no such function, as in an unknown version of torch.
    """
    *owners, name = path.split(".")
    for attribute in owners:
        owner = getattr(owner, attribute, None)
    original = getattr(owner, name, None)
    if original is None:
        return False
    if not getattr(original, "_mixorder_wrapper", False):

        @functools.wraps(original)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            return wrapper(original, *args, **kwargs)

        wrapped._mixorder_wrapper = True  # type: ignore[attr-defined]
        setattr(owner, name, wrapped)
    return True


@contextlib.contextmanager
def during(variable: ContextVar[T], value: T) -> Iterator[None]:
    """Inside, a context variable has this value."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)
