"""Row values of fewer than four bytes: fetched a turn of the loop before they are used."""

from __future__ import annotations

import graphs
import pytest
import torch
from graphs import bf16, f16, f32, generate, only, traced

from mixorder.schedule.device import H200
from mixorder.schedule.facts import facts_of
from mixorder.schedule.persistent import choose


def main_of(statistic: torch.dtype, rows: int = 1000, cols: int = 256) -> str:
    def backward(dy: torch.Tensor, x: torch.Tensor, rstd: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x_hat = x.float() * rstd.float()
        dx = (dy.float() - x_hat * (dy.float() * x_hat).mean(1, keepdim=True)) * rstd.float()
        return dx.to(x.dtype), (dy.float() * x_hat).sum(0)

    full = ((rows, cols), bf16)
    program = graphs.merged(only(traced(backward, full, full, ((rows, 1), statistic))))
    return generate(program, choose(facts_of(program), H200), "test")[0].text


@pytest.mark.parametrize("statistic", [bf16, f16])
def test_sixteen_bits_are_fetched_before_the_loop_and_in_it_for_the_next_tile(statistic: torch.dtype) -> None:
    text = main_of(statistic)
    before, loop = text.split("for tile in tl.range(")
    assert "x_ahead = s * XBLOCK" in before
    (load,) = (line.strip() for line in before.splitlines() if "ahead0 = tl.load(" in line)
    assert load.endswith("x_ahead < 1000, other=0)")  # of a tile that need not be there
    assert load in loop and loop.index("= ahead0.to(tl.float32)") < loop.index(load) < loop.index("tl.sum(")
    pointer = load.split("tl.load(")[1].split(" ")[0]
    assert text.count(pointer + " +") == 2  # and nowhere else


def test_statistics_in_fp32_are_left_to_triton() -> None:
    assert "ahead" not in main_of(f32)
