"""Float8 training as families of models: what is fused in a block, on fake tensors, and what it computes."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import pytest
import torch
from lab import families
from lab.float8_client import BY_HAND, RECIPES

import mixorder
from mixorder.inductor.printing import TritonOverrides

with_torchao = pytest.mark.skipif(not importlib.util.find_spec("torchao"), reason="needs torchao")


@pytest.fixture(autouse=True)
def inductor_as_it_was() -> Iterator[None]:
    """torchao replaces what Inductor prints for maxima, for good; other tests compare kernels' texts."""
    printed = {name: vars(TritonOverrides)[name] for name in ("maximum", "minimum")}
    yield
    for name, value in printed.items():
        setattr(TritonOverrides, name, value)


@with_torchao
@pytest.mark.parametrize(("recipe", "pairs"), [("rowwise", 6), ("tensorwise", 0), ("rowwise_with_gw_hp", 0)])
def test_pairs_of_scales_in_a_block(recipe: str, pairs: int) -> None:
    """Each of seven products takes a gradient that is scaled along rows and columns; two share a region."""
    assert _pairs_of_scales(f"torchao/{recipe}@2x1024x1024x1") == pairs


@pytest.mark.parametrize(("recipe", "pairs"), zip(BY_HAND, (5, 4), strict=True))
def test_gradients_are_cast_along_rows_and_columns_at_once(recipe: str, pairs: int) -> None:
    """Those of the block's result, of the second norm's operand, of the queries and of the keys; and of the
    gate, where the product is no custom operator. The other half of the MLP's would take memory."""
    assert _pairs_of_scales(f"float8/{recipe}@4x2048x1024x1") == pairs


def _pairs_of_scales(family: str) -> int:
    model, inputs = families.build(family)
    report = mixorder.explain(model.bfloat16(), dynamic=False)(**inputs)
    assert not [n for n in report.norms if n.reason]
    return len([r for r in report.regions if {one.op for one in r.inner} == {"amax"}])


@pytest.mark.parametrize("other", ["torchao/other", "float8/other"])
def test_recipes_are_families(other: str) -> None:
    found = set(families._of_float8())
    assert {f"float8/{name}" for name in BY_HAND} <= found
    assert not importlib.util.find_spec("torchao") or {f"torchao/{name}" for name in RECIPES} <= found
    with pytest.raises(ValueError, match="one of rowwise"):
        families.build(other)


def test_a_name_ends_in_sizes() -> None:
    model, _ = families.build("float8/blocks_of_128@2x256x512x3")
    assert model.x.shape == (2, 256, 512)
    assert len(model.blocks) == 3


@pytest.mark.skipif(torch.cuda.is_available(), reason="compares with the product on the processor")
def test_products_by_hand_are_about_those_in_float32() -> None:
    """Of a block of random numbers: rounding to e4m3 moves each element by at most 6%."""
    torch.manual_seed(0)
    model, _ = families.build("float8/blocks_of_128_custom@1x128x512x1", "cpu")
    exact, _ = families.build("float8/blocks_of_128_custom@1x128x512x1", "cpu")
    exact.load_state_dict(model.state_dict())
    for module in exact.modules():
        if isinstance(module, torch.nn.Linear):
            module.__class__ = torch.nn.Linear
    gradients = []
    for one in (model, exact):
        one().backward()
        gradients.append([p.grad for p in one.parameters()])
    for rounded, wanted in zip(*gradients, strict=True):
        assert 0 < (rounded - wanted).norm() < 0.1 * wanted.norm()
