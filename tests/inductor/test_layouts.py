"""Inductor's wrapper code around our kernels, run: results that are viewed, written or gathered.

All cases share one process (see wrapped.py), which prints what it found as JSON.
"""

from __future__ import annotations

from typing import Any

import pytest
from results import RESULTS
from support import stand_in

DYNAMIC = ("cat_of_columns", "viewed", "accumulated")
CASES = [*((name, False) for name in RESULTS), *((name, True) for name in DYNAMIC)]

SCRIPT = """
import json
import torch, wrapped
from torch._inductor import config
from results import RESULTS, aliases
from torch._dynamo.utils import counters

def run(name, dynamic):
    function, shapes, _ = RESULTS[name]
    torch.manual_seed(0)
    mine = tuple(torch.randn(shape) for shape in shapes)
    theirs, exact = tuple(t.clone() for t in mine), tuple(t.double() for t in mine)
    torch._dynamo.reset()
    counters["mixorder"].clear()
    wrapped.launches.clear()
    for x in mine[:2] if dynamic else ():
        torch._dynamo.maybe_mark_dynamic(x, 0)
    with torch.no_grad():
        compiled = torch.compile(function, options=wrapped.OPTIONS, dynamic=None if dynamic else False)
        ours = (*compiled(*mine), *mine)
        eager, exact = (*function(*theirs), *theirs), (*function(*exact), *exact)
    return {
        "counters": counters["mixorder"],
        "layouts": [(list(t.shape), list(t.stride())) for t in ours],
        "eager_layouts": [(list(t.shape), list(t.stride())) for t in eager],
        "aliases": sorted(aliases(ours)),
        "eager_aliases": sorted(aliases(eager)),
        "errors": [float((t.double() - e).norm() / e.norm()) for t, e in zip(ours, exact, strict=True)],
        "launches": list(wrapped.launches),
    }

wrapped.install()
with config.patch({"cpp.simdlen": 1}):  # which compiles in two thirds of the time
    print(json.dumps({f"{name} {dynamic}": run(name, dynamic) for name, dynamic in CASES}))
"""


@pytest.fixture(scope="module")
def found() -> Any:
    return stand_in.found(f"CASES = {CASES}\n{SCRIPT}")


@pytest.mark.parametrize(("name", "dynamic"), CASES)
def test_results(found: dict[str, Any], name: str, dynamic: bool) -> None:
    case = found[f"{name} {dynamic}"]
    assert case["counters"] == {"fused_regions": RESULTS[name][2]}
    assert len(case["launches"]) == 2 * RESULTS[name][2]
    assert all(error < 1e-6 for error in case["errors"]), case["errors"]
    assert case["layouts"] == case["eager_layouts"] and case["aliases"] == case["eager_aliases"]


@pytest.mark.parametrize("name", ["cat_of_columns", "cat_of_rows"])
def test_a_result_without_an_aligned_place_has_a_buffer_of_its_own(found: dict[str, Any], name: str) -> None:
    """20 columns or 37 rows of 20 in front of it: the place starts at no multiple of 16 elements."""
    main = found[f"{name} False"]["launches"][0]
    tensors = [argument for argument in main[1] if isinstance(argument, list)]
    assert [[37, 20], [20, 1], 0] in tensors[2:]


def test_pieces_that_others_read_as_well_are_written_to_their_places(found: dict[str, Any]) -> None:
    main = found["read_elsewhere False"]["launches"][0]
    tensors = [argument for argument in main[1] if isinstance(argument, list)]
    for place in ([[37, 32], [64, 1], 0], [[37, 32], [64, 1], 32], [[37, 32], [32, 1], 0]):
        assert place in tensors[2:]
