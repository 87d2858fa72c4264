"""On a GPU: every case of the family at a middle size, against float64 beside stock Inductor."""

from __future__ import annotations

import pytest
from checked import check_case
from graphs import bf16
from support.cases import CASES
from support.compilers import OURS, STOCK, inductor

# Whether the other sum joins depends on the peak of memory, and so on how torch has split the graph.
OF_MEMORY = {"gradient with two readers": [([("4113x760", n, 2)], []) for n in (1, 2)]}


@pytest.mark.parametrize("name", CASES)
def test_case(name: str) -> None:
    case, ours = CASES[name], OURS | {"mixorder_min_numel": 0}
    either = OF_MEMORY.get(name, ())
    check_case(case, case.shapes.middle, bf16, "cuda", inductor(ours), inductor(STOCK), either)
