"""Casts to bfloat16 and back: which ones are one op, and its bits."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from graphs import bf16, f32, lowered_tile, ops
from support import quantised

from mixorder.ir.program import LoopProgram
from mixorder.ir.rewriting import rewritten
from mixorder.transform.rounding import ROUNDED, round_at_once
from mixorder.transform.same_bits import same_bits_sooner

GELU = [((256, 512), bf16)] * 2


def program_of(function: Any, specs: Any) -> LoopProgram:
    return lowered_tile(function, *specs)


@pytest.mark.parametrize("dtype", [torch.float16, f32])
def test_other_dtypes_stay_as_they_are(dtype: torch.dtype) -> None:
    program = program_of(quantised.gelu_backward, [((256, 512), dtype)] * 2)
    assert rewritten(program, round_at_once) == program


def test_only_gpus_that_have_the_instruction() -> None:
    program = program_of(quantised.gelu_backward, GELU)
    for saturates, runs_ptx in ((True, True), (True, False), (False, True), (False, False)):
        made = ops(same_bits_sooner(program, saturates, runs_ptx))
        assert (ROUNDED in made) == (saturates and runs_ptx)
