"""Triton's interpreter, without making the same types again for each operation of each program.

A kernel's programs do the same operations on the same few shapes. For each operation, Triton checks and names
a new type of block, and wraps each size of its shape, which took half of the time of the interpreter. Nothing
here changes a value.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from triton.language import core
from triton.language.semantic import TritonSemantic
from triton.runtime import interpreter

Made = dict[Any, Any]


def numpy_dtype(look_up: Callable[[Any], Any], made: Made) -> Callable[[Any], Any]:
    """NumPy's dtype for one of Triton's, of a block or not. The interpreter lists all of them each time."""

    def get(dtype: Any) -> Any:
        name = dtype.scalar.name
        if name not in made:
            made[name] = look_up(dtype)
        return made[name]

    return get


def block_type(make: Callable[..., None], made: Made) -> Callable[..., None]:
    """`block_type.__init__`: its attributes are those of an equal one. Equal shapes are one object."""
    shapes: Made = {}

    def init(self: Any, element_ty: Any, shape: Any) -> None:
        sizes = tuple(s.value if isinstance(s, core.constexpr) else s for s in shape)
        key = type(element_ty), element_ty.name, getattr(element_ty, "address_space", None), sizes
        if key not in made:
            make(self, element_ty, shape)
            self.shape = shapes.setdefault(sizes, self.shape)
            made[key] = vars(self).copy()
        else:
            self.__dict__.update(made[key])

    return init


def tensor(make: Callable[..., None], made: Made) -> Callable[..., None]:
    """`tensor.__init__`: the sizes, which are constants of a kernel, are those of an earlier such tensor."""

    def init(self: Any, handle: Any, type: Any) -> None:
        key = tuple(type.shape) if type.is_block() else ()
        if key not in made:
            make(self, handle, type)
            made[key] = self.numel, self.shape
        else:
            self.handle, self.type, self.dtype = handle, type, type.scalar
            self.numel, self.shape = made[key]

    return init


def broadcast(original: Callable[..., Any]) -> Callable[..., Any]:
    """`broadcast_impl_value`, which gives back two scalars, and two blocks of one shape."""

    def values(self: Any, lhs: Any, rhs: Any) -> Any:
        left, right = lhs.type, rhs.type
        if left.is_block() != right.is_block() or (left.is_block() and left.shape is not right.shape):
            return original(self, lhs, rhs)
        return lhs, rhs

    return values


def install(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(interpreter, "_get_np_dtype", numpy_dtype(interpreter._get_np_dtype, {}))
    patch.setattr(core.block_type, "__init__", block_type(core.block_type.__init__, {}))
    patch.setattr(core.tensor, "__init__", tensor(core.tensor.__init__, {}))
    patch.setattr(TritonSemantic, "broadcast_impl_value", broadcast(TritonSemantic.broadcast_impl_value))
