"""What saves time in Triton's interpreter changes no value."""

from __future__ import annotations

import functools
import types
from typing import Any

import memoised
import numpy as np
from triton.language import core
from triton.runtime import interpreter


def test_zeros_of_both_signs_are_two_constants() -> None:
    """Triton keeps the sign of such a constant from 3.9 on."""

    def make(self: Any, value: Any, dtype: Any) -> Any:
        handle = interpreter.TensorHandle(np.array([value], np.float32), dtype)
        return interpreter.interpreter_semantic.tensor(handle, dtype)

    constant = memoised.constant(make, {})
    values = [0.0, -0.0, 0.0, -0.0]
    made = [constant(interpreter.interpreter_semantic, value, core.float32) for value in values]
    assert np.array_equal(np.signbit([t.handle.data[0] for t in made]), np.signbit(values))
    operands = memoised.operands(
        lambda semantic, tensor, number, *_: (tensor, constant(semantic, number, core.float32)), {}
    )
    both = [operands(interpreter.interpreter_semantic, made[0], value) for value in values]
    assert np.array_equal(np.signbit([number.handle.data[0] for _, number in both]), np.signbit(values))


def test_a_class_may_be_a_builtin() -> None:
    """One of Triton 3.8's is."""

    class Block:
        def __init__(self, size: int, _semantic: Any) -> None:
            self.size, self.semantic = size, _semantic

    target: Any = types.SimpleNamespace()
    memoised.builtin(target, "Block", Block, None, types.SimpleNamespace(set_attr=setattr))
    block = target.Block(4)
    assert block.size == 4 and block.semantic is interpreter.interpreter_semantic


def test_of_a_builtin_only_its_own_wrapper_is_left_out() -> None:
    absolute = core.builtin(lambda a, _semantic: abs(a))

    @functools.wraps(absolute)
    def negative(*args: Any, **kwargs: Any) -> Any:
        return -absolute(*args, **kwargs)

    assert core.is_builtin(negative)
    target: Any = types.SimpleNamespace()
    for name, member in (("absolute", absolute), ("negative", negative)):
        memoised.builtin(target, name, member, None, types.SimpleNamespace(set_attr=setattr))
    assert target.absolute(-3) == 3 and target.negative(-3) == -3
