"""What a tile computes before it waits for values of its rows, and what it computes again behind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from graphs import bf16, f16, f32, traced, within_tile
from support.quantised import mx_both, norm_backward

from mixorder.codegen import bfloat16
from mixorder.ir.program import Load, LoopProgram, Statement
from mixorder.lowering.tile import lower_tile
from mixorder.region.producers import with_row_values
from mixorder.transform.cooperative import MAILBOX
from mixorder.transform.held_packed import UNPACKED, hold_packed
from mixorder.transform.producers import with_producers
from mixorder.transform.same_bits import same_bits_sooner
from mixorder.transform.tile_split import split_spanning


def program_of(
    function: Any = norm_backward, dtype: torch.dtype = bf16, others: Sequence[Any] = ()
) -> LoopProgram:
    specs = [((512, 1024), dtype), ((512, 1024), dtype), ((1024,), dtype), ((512, 1), f32), *others]
    region = with_row_values(within_tile(traced(lambda *x: function(*x), *specs)))
    assert region is not None
    return same_bits_sooner(split_spanning(with_producers(lower_tile(region))), True, True)


def waits(body: tuple[Statement, ...]) -> list[int]:
    return [i for i, s in enumerate(body) if isinstance(s, Load) and s.buffer == MAILBOX]


@pytest.mark.parametrize("dtype", [f16, f32])
def test_what_is_converted_by_one_instruction_alone_is_kept(dtype: torch.dtype) -> None:
    """A compiler would make one of both again."""

    def norm(x: Any, dy: Any, w: Any, rstd: Any) -> Any:
        normed, scaled = x.float() * rstd, dy.float() * w.float()
        dx = rstd * (scaled - normed * (normed * scaled).mean(-1, keepdim=True))
        return *mx_both(dx.to(bf16)), (dy.float() * normed).sum(0)

    program = program_of(norm, dtype)
    assert waits(program.nests[0].body) and hold_packed(program) == program


def test_the_interpreter_unpacks_bits() -> None:
    text = bfloat16.called(UNPACKED, "x")
    assert text is not None and "pack=2" in text and bfloat16.called("mul", "x") is None
    (body,) = (part for part in text.split('"') if part.startswith("{"))
    values = torch.tensor([1.5, -3e38, float("inf"), float("nan"), 1e-40, 0.0], dtype=bf16)
    results = bfloat16.interpreted(body, [values.view(torch.int16).numpy().view("uint16")])
    assert results is not None and np.array_equal(results[0], values.float().numpy(), equal_nan=True)
    assert bfloat16.interpreted("{ }", [values]) is None
