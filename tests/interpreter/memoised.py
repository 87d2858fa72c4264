"""Triton's interpreter, without making the same types and constants again for each operation of each program.

A kernel's programs do the same operations on the same few shapes. For each operation, Triton checks and names
a new type of block, wraps each size of its shape, and makes an array of each constant, twice. Nothing here
changes a value.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from triton.language import core
from triton.language.semantic import TritonSemantic
from triton.runtime import interpreter

Made = dict[Any, Any]
_WRAPPER = core.load.__code__  # of each function that `core.builtin` has decorated


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


def with_element_ty(make: Callable[..., Any], made: Made) -> Callable[..., Any]:
    """`block_type.with_element_ty`: equal types are one object."""

    def get(self: Any, scalar_ty: Any) -> Any:
        key = type(scalar_ty), scalar_ty.name, getattr(scalar_ty, "address_space", None), self.shape
        if key not in made:
            made[key] = make(self, scalar_ty)
        return made[key]

    return get


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


def operands(original: Callable[..., Any], made: Made) -> Callable[..., Any]:
    """`binary_op_type_checking_impl`, which casts nothing of one dtype; quotients aside. A number beside a
    tensor is the block of an earlier one, in a handle of its own."""

    def checked(
        self: Any,
        lhs: Any,
        rhs: Any,
        allow_lhs_ptr: bool = False,
        allow_rhs_ptr: bool = False,
        arithmetic_check: bool = True,
        div_or_mod: bool = False,
    ) -> Any:
        rules = allow_lhs_ptr, allow_rhs_ptr, arithmetic_check, div_or_mod
        left, right = isinstance(lhs, core.tensor), isinstance(rhs, core.tensor)
        if left == right:
            if left and not div_or_mod and lhs.dtype is rhs.dtype and not lhs.dtype.is_ptr():
                return self.broadcast_impl_value(lhs, rhs)
            return original(self, lhs, rhs, *rules)
        tensor, number = (lhs, rhs) if left else (rhs, lhs)
        key = left, tensor.type.name, rules, type(number), number, number == 0 and str(number)
        if key not in made:
            both = original(self, lhs, rhs, *rules)
            if both[right] is not tensor or number != number:  # it is cast, or NaN, which is not found again
                return both
            other = both[left]
            other.handle.data.flags.writeable = False
            made[key] = other.handle.data, other.handle.dtype, other.type
        data, dtype, block = made[key]
        other = self.tensor(interpreter.TensorHandle(data, dtype), block)
        return (tensor, other) if left else (other, tensor)

    return checked


def constant(original: Callable[..., Any], made: Made) -> Callable[..., Any]:
    """`scalar_constant`: the array of an earlier one, in a handle of its own: those may be changed."""

    def scalar(self: Any, value: Any, dtype: Any) -> Any:
        key = type(value), value, value == 0 and str(value), dtype and dtype.name  # 0.0 equals -0.0
        if key not in made:
            first = original(self, value, dtype)
            if value != value:  # NaN is not found again
                return first
            first.handle.data.flags.writeable = False
            made[key] = first.handle.data, first.handle.dtype
        return self.tensor(interpreter.TensorHandle(*made[key]), dtype)

    return scalar


def handle(make: Callable[..., None]) -> Callable[..., None]:
    """`TensorHandle.__init__`, which asks whether the numbers are as wide as the dtype says."""
    fitting: set[Any] = set()

    def init(self: Any, data: Any, dtype: Any, *attr: Any) -> None:
        key = data.dtype, dtype.name
        if attr or key not in fitting:
            make(self, data, dtype, *attr)
            fitting.add(key)
        else:
            self.data, self.dtype, self.attr = data, dtype, {}

    return init


def builtin(target: Any, name: str, member: Callable[..., Any], _: Any, scope: Any) -> None:
    """`_patch_attr`, without the wrapper that asks whether a builtin is called in a kernel. A class may be
    a builtin, too."""
    is_wrapper = getattr(member, "__code__", None) is _WRAPPER
    function = member.__wrapped__ if is_wrapper else member  # type: ignore[attr-defined]

    def call(*args: Any, **kwargs: Any) -> Any:
        kwargs["_semantic"] = interpreter.interpreter_semantic
        return function(*args, **kwargs)

    scope.set_attr(target, name, call)


def install(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(interpreter, "_get_np_dtype", numpy_dtype(interpreter._get_np_dtype, {}))
    patch.setattr(core.block_type, "__init__", block_type(core.block_type.__init__, {}))
    typed = with_element_ty(core.block_type.with_element_ty, {})
    patch.setattr(core.block_type, "with_element_ty", typed)
    patch.setattr(core.block_type, "to_ir", lambda block, _: block)  # the builder would make an equal one
    patch.setattr(core.tensor, "__init__", tensor(core.tensor.__init__, {}))
    patch.setattr(TritonSemantic, "broadcast_impl_value", broadcast(TritonSemantic.broadcast_impl_value))
    checked = operands(TritonSemantic.binary_op_type_checking_impl, {})
    patch.setattr(TritonSemantic, "binary_op_type_checking_impl", checked)
    patch.setattr(TritonSemantic, "scalar_constant", constant(TritonSemantic.scalar_constant, {}))
    patch.setattr(interpreter.TensorHandle, "__init__", handle(interpreter.TensorHandle.__init__))
    patch.setattr(interpreter, "_patch_attr", builtin)
