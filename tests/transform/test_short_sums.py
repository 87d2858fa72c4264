"""Sums over rows without compensation, for programs of few rows."""

from __future__ import annotations

import dataclasses

import graphs
import pytest
from graphs import bf16, f32, merged, only

from mixorder.errors import GainsNothing
from mixorder.ir.program import Load, LoopProgram, PartialAccumulate, Reduce
from mixorder.ir.verify import Form, verify
from mixorder.schedule.facts import facts_of
from mixorder.transform.short_sums import without_compensation


def layer(dtype: object) -> LoopProgram:
    return merged(only(graphs.layer_norm_backward(4096, 512, dtype)))


def sums(program: LoopProgram) -> list[PartialAccumulate]:
    return [s for s in program.nests[0].body if isinstance(s, PartialAccumulate)]


def test_nothing_but_the_compensation_is_left_out() -> None:
    program = layer(f32)
    plain = verify(without_compensation(program), Form.MERGED)
    assert [s.compensated for s in sums(program)] == [True, True]
    assert sums(plain) == [dataclasses.replace(s, compensated=False) for s in sums(program)]
    assert plain.nests[1:] == program.nests[1:] and plain.buffers == program.buffers
    assert facts_of(plain).held_words == facts_of(program).held_words - 2


def test_partial_results_are_still_added_up_in_fp64() -> None:
    final = without_compensation(layer(f32)).nests[-1]
    assert {str(s.dtype) for s in final.body if isinstance(s, Load | Reduce)} == {"torch.float64"}


def test_a_program_without_compensated_sums_is_declined() -> None:
    with pytest.raises(GainsNothing, match="no sum over rows is compensated"):
        without_compensation(layer(bf16))
