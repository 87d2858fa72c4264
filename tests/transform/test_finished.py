"""Sums that a main kernel finishes, since each program has all rows: names, and where it does."""

from __future__ import annotations

import torch
from graphs import bf16, f32, merged, only, traced

from mixorder.ir.program import Store
from mixorder.schedule.device import H200
from mixorder.schedule.facts import FINAL_LOADS, facts_of
from mixorder.schedule.persistent import choose
from mixorder.schedule.plan import Plan
from mixorder.strategies.column_blocks import COLUMN_BLOCKS
from mixorder.transform.finished import finished


def test_values_of_the_main_nest_keep_their_names() -> None:
    """What both nests compute has two names in one nest."""

    def function(x: torch.Tensor, dy: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        scale = w * 2
        scaled = dy * scale
        return dy - (x * scaled).sum(2, keepdim=True), (x * scaled).sum(0) * scale

    full, column = ((32, 640, 16), f32), ((640, 16), f32)
    nest = finished(merged(only(traced(function, full, full, column)))).nests[0]
    names = [s.name for s in nest.statements if not isinstance(s, Store) and hasattr(s, "name")]
    assert len(names) == len(set(names)) and any(name.endswith(".after") for name in names)


def test_a_finalisation_that_reads_much_stays_a_kernel() -> None:
    """Its loads would take registers of the main kernel's loop."""

    def function(x: torch.Tensor, dy: torch.Tensor, *w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        total = (x * dy).sum(0)
        for one in w:
            total = total * one
        return dy - (x * dy).sum(2, keepdim=True), total

    def schedule_of(others: int) -> Plan:
        full, column = ((32, 640, 16), f32), ((640, 16), f32)
        program = merged(only(traced(function, full, full, *[column] * others)))
        return choose(facts_of(program), H200)

    assert schedule_of(FINAL_LOADS).finishes and not schedule_of(FINAL_LOADS + 1).finishes


def test_blocks_of_columns_finish_as_well() -> None:

    def product(x: torch.Tensor, dy: torch.Tensor) -> tuple[torch.Tensor, ...]:
        product = x * dy
        return product, product.sum(0)

    full = ((4096, 384), bf16)
    program = COLUMN_BLOCKS.transform(merged(only(traced(product, full, full))), H200)
    schedule = choose(facts_of(program), H200).changed(splits=1)
    (kernel,) = COLUMN_BLOCKS.generate(program, schedule, "test")
    assert "ws0_ptr" not in kernel.text and "tl.store(out1_ptr" in kernel.text
