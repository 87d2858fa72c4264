"""Each program in each way that can run it (tests/matrix.py), compiled by Inductor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import matrix
import pytest
import torch
from matrix import Case, cases
from support.compilers import STRICT

from mixorder.report import RegionRecord, collect

DEVICE = "cuda"


def compiled(case: Case) -> Callable[..., Any]:
    options = STRICT | {"mixorder_split_size": case.way.split_size}
    return torch.compile(case.on(case.space), options=options, dynamic=False)


@pytest.mark.parametrize("case", cases(), ids=str)
def test_case(case: Case, plan_with: Callable[..., None]) -> None:
    """Also with more rows than it was made for, and with a value that is not finite in one row."""
    plan_with(**case.way.setting)
    function, space = compiled(case), case.space
    now = space.shape[space.row_dim]
    with torch.no_grad(), collect() as records:
        for rows in (now + 4, now) if case.symbolic else (now,):
            space = space.with_rows(rows)
            args = matrix.arguments(case.function, space, case.dtype, DEVICE)
            for t in args:
                if case.symbolic and t.shape[space.row_dim] > 1:
                    torch._dynamo.mark_dynamic(t, space.row_dim)
            ours = [t.clone() for t in function(*args)]
            rough = case.function in matrix.ROUGH
            matrix.check(tuple(ours), case.on(space), args, args[0].numel(), rough)
        planted = matrix.plant(args[0], space)
        matrix.stays_in_its_row(function(*args), tuple(ours), case.on(space)(*args), planted)
    (record,) = records
    assert isinstance(record, RegionRecord) and case.way.took(record)
