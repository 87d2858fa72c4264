"""Replaces functions of torch by wrappers, each once."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

Function = Callable[..., Any]


def wrap(owner: Any, path: str, wrapper_of: Callable[[Any], Function]) -> bool:
    """Replace the function at a dotted path of a module or class by `wrapper_of(function)`, unless it is
    wrapped already.

    False where there is no such function, as in an unknown version of torch.
    """
    *owners, name = path.split(".")
    for attribute in owners:
        owner = getattr(owner, attribute, None)
    original = getattr(owner, name, None)
    if original is None:
        return False
    if not getattr(original, "_mixorder_wrapper", False):
        wrapper = functools.wraps(original)(wrapper_of(original))
        wrapper._mixorder_wrapper = True  # type: ignore[attr-defined]
        setattr(owner, name, wrapper)
    return True
