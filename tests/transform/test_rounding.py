"""Casts to bfloat16 and back: which ones are one op, and its bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from graphs import bf16, f32, lowered_tile, ops
from support import quantised

from mixorder.codegen import bfloat16
from mixorder.ir.program import Compute, LoopProgram, Store
from mixorder.ir.rewriting import rewritten
from mixorder.ir.verify import Form, verify
from mixorder.transform.rounding import ROUNDED, round_at_once
from mixorder.transform.same_bits import same_bits_sooner

GELU = [((256, 512), bf16)] * 2


def program_of(function: Any, specs: Any) -> LoopProgram:
    return lowered_tile(function, *specs)


def test_a_gradient_that_is_rounded_before_its_casts() -> None:
    program = program_of(quantised.gelu_backward, GELU)
    assert ROUNDED not in ops(program)
    rounded = rewritten(program, round_at_once)
    verify(rounded, Form.BLOCKED)
    once = ops(rounded).count(ROUNDED)
    assert once and ops(rounded).count("to_dtype") == ops(program).count("to_dtype") - 2 * once


@pytest.mark.parametrize("dtype", [torch.float16, f32])
def test_other_dtypes_stay_as_they_are(dtype: torch.dtype) -> None:
    program = program_of(quantised.gelu_backward, [((256, 512), dtype)] * 2)
    assert rewritten(program, round_at_once) == program


def test_only_gpus_that_have_the_instruction() -> None:
    program = program_of(quantised.gelu_backward, GELU)
    for saturates, runs_ptx in ((True, True), (True, False), (False, True), (False, False)):
        made = ops(same_bits_sooner(program, saturates, runs_ptx))
        assert (ROUNDED in made) == (saturates and runs_ptx)


def test_a_result_in_bfloat16_is_stored_from_the_rounded_value() -> None:
    def function(x: Any) -> Any:
        half = (x.float() * 1.1).bfloat16()
        return *quantised.mx_both(half), half

    program = rewritten(program_of(function, GELU[:1]), round_at_once)
    (rounded,) = (s for s in program.nests[0].body if isinstance(s, Compute) and s.op == ROUNDED)
    stores = [s for s in program.nests[0].body if isinstance(s, Store) and s.value.name == rounded.name]
    assert [program.buffer(store.buffer).dtype for store in stores] == [bf16]


def test_the_interpreter_rounds_as_torch_does() -> None:
    text = bfloat16.called(ROUNDED, "x")
    assert text is not None and "pack=2" in text and bfloat16.called("mul", "x") is None
    (body,) = (part for part in text.split('"') if part.startswith("{"))
    values = np.array([1.00390625, 1.01171875, -3.3e38, np.inf, 1e-40, 0.0], np.float32)
    results = bfloat16.interpreted(body, [values])
    assert results is not None and bfloat16.interpreted("{ }", [values]) is None
    assert (results[0] == torch.from_numpy(values).bfloat16().float().numpy()).all()
