"""Regions of sums over reduction groups."""

from __future__ import annotations

import torch
from graphs import bf16, f32, traced
from torch import Tensor

from mixorder.region.find import find_regions
from mixorder.region.region import Region

AXES = (0, 2, 3)


def batch_norm_backward(dy: Tensor, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of an `x` with a mean of 0 and a variance of 1: dx, and the two sums of each channel."""
    both = dy.float().sum(AXES, keepdim=True), (dy.float() * x.float()).sum(AXES, keepdim=True)
    mean = [one / (x.numel() // x.shape[1]) for one in both]
    return (dy.float() - mean[0] - x.float() * mean[1]).to(x.dtype), *both


def test_a_stored_gradient_whose_order_only_its_operands_tell() -> None:
    """Three residual blocks: what the sums of the last one add up lies between, and is stored. No
    region is taken, so that it stays what it is."""

    def function(dy: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        *inputs, weight = rest
        results: list[Tensor] = []
        for x in inputs:
            dx, *sums = batch_norm_backward(dy, x)
            dy = dy + torch.matmul(dx, weight)
            results += [dy, *sums]
        return tuple(results)

    tensor = ((64, 64, 56, 56), bf16)
    found = list(find_regions(traced(function, *[tensor] * 4, ((56, 56), bf16))))
    assert len(found) == 3 and all(isinstance(one, Region) for one in found)
    assert [len(one.outer) for one in found if isinstance(one, Region)] == [2, 2, 2]
    assert {str(one.space) for one in found if isinstance(one, Region)} == {"row 64 x column 64 x row 3136"}


def test_what_the_region_reads_anyway_is_not_read_multiplied() -> None:
    """A global response norm: the gradient of its weight is a sum of a product that nothing else needs. Its
    factors are those of the sums of each sample."""

    def function(dy: Tensor, x: Tensor, size: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
        gain = size / size.mean(-1, keepdim=True)
        one = (dy * (weight * x)).sum((1, 2), keepdim=True) / size
        dx = dy * gain * weight + x * (one - one.mean(-1, keepdim=True))
        return dx, (dy * gain * x).sum((0, 1, 2))

    tensor = ((32, 28, 28, 768), f32)
    graph = traced(function, tensor, tensor, ((32, 1, 1, 768), f32), ((768,), f32))
    (region,) = (one for one in find_regions(graph) if isinstance(one, Region))
    large = filter(region.seed.analysis.is_full, region.inputs)
    assert len(region.outer) == 3 and {n.name for n in large} == {"dy_1", "x_1"}
