"""Which products and sums are of one operator."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from graphs import bf16, traced, within_tile
from support import quantised
from torch.fx import Node

from mixorder.region.key import structural_key
from mixorder.region.operators import contracted
from mixorder.region.region import Region

aten = torch.ops.aten
GELU = [((256, 512), bf16)] * 2


def region_of(function: Any, operator: Any = aten.gelu_backward.default, **meta: Any) -> Region:
    """The region, of which all products, sums and differences are marked as of one call."""
    region = within_tile(traced(lambda *x: function(*x), *GELU))
    for node in region.nodes:
        if node.target in (aten.mul.Tensor, aten.add.Tensor, aten.sub.Tensor):
            node.meta |= {"original_aten": operator, "seq_nr": 7, **meta}
    return region


def pairs(region: Region) -> list[tuple[str, str]]:
    return [(product.name, total.name) for product, total in contracted(region)]


def test_operators_of_the_user_round_by_themselves() -> None:
    assert not pairs(within_tile(traced(lambda *x: quantised.gelu_backward(*x), *GELU)))
    region = within_tile(traced(lambda *x: quantised.mx_both(x[0] * x[1] + x[0]), *GELU))
    for node in region.nodes:
        node.meta["original_aten"] = node.target
    assert not pairs(region)


def test_two_calls_of_an_operator_are_apart() -> None:
    region = region_of(quantised.gelu_backward)
    (product, _), *_ = contracted(region)
    product.meta["seq_nr"] = 8
    assert len(pairs(region)) == 3


def test_a_product_that_something_else_takes() -> None:
    region = region_of(lambda x, y: quantised.mx_both((t := x * y) * t + t))
    assert all(len(product.users) == 1 for product, _ in contracted(region))
    assert len(pairs(region)) == 1  # the square, and not the product that is used three times


def test_regions_that_are_contracted_otherwise_have_other_keys() -> None:
    region = region_of(quantised.gelu_backward)
    key = structural_key(region)
    (product, _), *_ = contracted(region)
    product.meta["seq_nr"] = 8
    assert key is not None and structural_key(region) != key


@pytest.mark.parametrize("name", ["aten.gelu_backward.default", aten.gelu_backward.default])
def test_an_operator_is_known_by_its_name(name: Any) -> None:
    """A copied graph has copies of the operators in its metadata."""
    assert len(pairs(region_of(quantised.gelu_backward, name))) == 4


def test_a_sum_with_a_factor_is_none() -> None:
    region = region_of(lambda x, y: quantised.mx_both(torch.add(x, x * y, alpha=2)))
    sums = [n for n in region.nodes if isinstance(n, Node) and n.target is aten.add.Tensor]
    assert all(not total.kwargs for _, total in contracted(region)) and sums
