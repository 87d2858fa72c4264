"""torchao's float8 training as families of models: what is fused in a block, on fake tensors."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("torchao")

from lab import families
from lab.float8_client import RECIPES

import mixorder
from mixorder.inductor.printing import TritonOverrides


@pytest.fixture(autouse=True)
def inductor_as_it_was() -> Iterator[None]:
    """torchao replaces what Inductor prints for maxima, for good; other tests compare kernels' texts."""
    printed = {name: vars(TritonOverrides)[name] for name in ("maximum", "minimum")}
    yield
    for name, value in printed.items():
        setattr(TritonOverrides, name, value)


@pytest.mark.parametrize(("recipe", "pairs"), [("rowwise", 6), ("tensorwise", 0), ("rowwise_with_gw_hp", 0)])
def test_pairs_of_scales_in_a_block(recipe: str, pairs: int) -> None:
    """Each of seven products takes a gradient that is scaled along rows and columns; two share a region."""
    model, inputs = families.build(f"torchao/{recipe}@2x1024x1024x1")
    report = mixorder.explain(model.bfloat16(), dynamic=False)(**inputs)
    assert len([r for r in report.regions if {one.op for one in r.inner} == {"amax"}]) == pairs
    assert not [n for n in report.norms if n.reason]


def test_recipes_are_families() -> None:
    assert {f"torchao/{name}" for name in RECIPES} <= set(families._of_torchao())
    with pytest.raises(ValueError, match="one of rowwise"):
        families.build("torchao/other")
