"""Sums of exponentials relative to a maximum, of a program that has whole rows."""

from __future__ import annotations

from typing import Any

import torch
from graphs import f32, only, traced

from mixorder.ir.program import Reduce, Value
from mixorder.ir.verify import Form, verify
from mixorder.lowering.lower import lower
from mixorder.transform.relative import in_two_steps
from mixorder.transform.reorder import reorder
from mixorder.transform.split import split_outer


def softmax_over_both(x: Any, y: Any) -> Any:
    """Of its rows, whose sum both nests have, and the differences to the maxima the second one alone."""
    peak, total = torch.ops.prims.prepare_softmax_online(x, 1)
    return y * total, ((x - peak).exp() / total * y).sum(0)


def test_nests_have_a_sum_in_the_same_steps() -> None:
    program = in_two_steps(lower(only(traced(softmax_over_both, ((512, 96), f32), ((512, 96), f32)))))
    assert not any(isinstance(s, Reduce) and s.peak for nest in program.nests for s in nest.body)
    rows, columns = ({s.name: s for s in nest.body if isinstance(s, Value)} for nest in program.nests)
    assert all(rows[name] == columns[name] for name in rows.keys() & columns.keys())
    assert any(name.endswith(".term") for name in rows)
    verify(reorder(split_outer(program)), Form.MERGED)
