"""Clamps before a cast to float8: which ones the cast does by itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from graphs import bf16, f32, lowered_tile, mixed_order
from support.quantised import F8

from mixorder.ir.program import Compute, LoopProgram
from mixorder.ir.rewriting import rewritten
from mixorder.ir.verify import Form, verify
from mixorder.transform.saturation import without_clamp

Function = Callable[..., Any]


def program_of(function: Function, dtype: torch.dtype = bf16) -> LoopProgram:
    return lowered_tile(function, ((256, 512), dtype))


def clamps(program: LoopProgram) -> int:
    """Comparisons for each element."""
    nest = program.nests[0]
    deps, every = nest.dependence(), {axis.symbol for axis in nest.loops}
    found = [s for s in nest.body if isinstance(s, Compute) and s.op in ("maximum", "minimum")]
    return sum(every <= deps[s.name] for s in found)


def cast(clamp: Function, dtype: torch.dtype = F8) -> Function:
    return mixed_order(lambda x, dim: clamp(x.float() / x.float().amax(dim, keepdim=True)).to(dtype))


@pytest.mark.parametrize(
    ("clamp", "dtype", "left"),
    [
        (lambda x: x.clamp(-448, 448), F8, 0),
        (lambda x: x.clamp(-57344, 57344), torch.float8_e5m2, 0),
        (lambda x: torch.minimum(x.clamp(min=-448), x * 0 + 448), F8, 4),
        (lambda x: x.clamp(max=448.0), F8, 0),
        (lambda x: x.clamp(-448, 448).clamp(-448, 448), F8, 0),
        (lambda x: x.clamp(-448, 447), F8, 4),
        (lambda x: x.clamp(-440, 448), F8, 2),
        (lambda x: x.clamp(-448, 448), torch.float8_e5m2, 4),
        (lambda x: x.clamp(-448, 448) * 2, F8, 4),
        (lambda x: x.clamp(-448, 448), bf16, 4),
    ],
)
def test_which_clamps_are_left(clamp: Function, dtype: torch.dtype, left: int) -> None:
    program = program_of(cast(clamp, dtype))
    assert clamps(verify(rewritten(program, without_clamp), Form.TILE_LOCAL)) == left <= clamps(program)


def test_a_clamped_value_that_is_stored_too_stays_clamped() -> None:
    def function(x: Any) -> Any:
        clamped = cast(lambda x: x.clamp(-448, 448), f32)(x)
        return *clamped, *(x.to(F8) for x in clamped)

    program = program_of(function)
    assert clamps(rewritten(program, without_clamp)) == clamps(program) == 4
