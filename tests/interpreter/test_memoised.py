"""What saves time in Triton's interpreter changes no value."""

from __future__ import annotations

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
