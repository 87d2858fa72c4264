"""On a GPU: every case of the family at a middle size, against float64 versus stock Inductor."""

from __future__ import annotations

import pytest
from checked import check_case
from graphs import bf16
from support.cases import CASES
from support.compilers import OURS, STOCK, inductor

# Whether the other sum joins depends on the peak of memory, and so on how torch has split the graph. On a GPU
# the bias gradient of a convolution is a sum of its own, which joins those of the norm.
ELSEWHERE = {
    "gradient with two readers": [([("4113x760", n, 2)], []) for n in (1, 2)],
    "ConvNeXt block": [([("3915x40", 2, 3), ("3915x40", 0, 2), ("3915x160", 0, 1)], [])],
}


@pytest.mark.parametrize("name", CASES)
def test_case(name: str) -> None:
    case, ours = CASES[name], OURS | {"mixorder_min_numel": 0}
    either = ELSEWHERE.get(name, ())
    check_case(case, case.shapes.middle, bf16, "cuda", inductor(ours), inductor(STOCK), either)
