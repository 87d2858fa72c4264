"""The moves of the search, and which region it takes where a region holds or computes too much."""

from __future__ import annotations

from typing import Any

import graphs
import pytest
import torch
from graphs import bf16, f32, fused, outcomes, path_through_remainder, traced
from support import quantised
from torch.fx import Graph

from mixorder.errors import Decline, DeclineReason
from mixorder.options import Options
from mixorder.region.find import RegionSearch, find_regions
from mixorder.region.region import Region
from mixorder.region.variants import lighter, smaller
from mixorder.report import RegionRecord
from mixorder.rewrite.canonicalise import Canonicaliser

aten = torch.ops.aten
TOO_WIDE = Decline(DeclineReason.ROW_TOO_WIDE, "for a test")


def many_sums(rows: int, cols: int, count: int) -> Graph:
    """A pair, and `count` more outer reductions of tensors of their own."""

    def function(x: Any, dy: Any, *others: Any) -> Any:
        dx, dw = graphs.pair(x, dy)
        return (dx, dw, *[(dx * other).sum(0) for other in others])

    return traced(function, *[((rows, cols), f32)] * (2 + count))


def first(graph: Graph) -> Region:
    """The search stands still behind it: a subregion is grown before the search goes on."""
    region = next(find_regions(graph))
    assert isinstance(region, Region)
    return region


def test_each_subregion_is_smaller_and_convex_with_a_pair() -> None:
    region = first(many_sums(512, 256, 2))
    found = smaller(region, TOO_WIDE, ())
    assert len(found) == 3  # without dw, and without either sum
    for subregion in found:
        assert set(subregion.nodes) < set(region.nodes) and subregion.inner and subregion.outer
        assert path_through_remainder(subregion) is None
        assert subregion.seed.without


def test_a_subregion_without_a_reduction_leaves_out_what_is_there_for_it() -> None:
    graph = traced(lambda x: quantised.mx4_both(x), ((512, 512), bf16))
    canonicaliser = Canonicaliser(graph)
    canonicaliser.begin()
    region = next(find_regions(graph, canonicaliser.joining))
    assert isinstance(region, Region)
    subregions = smaller(region, TOO_WIDE, ())
    left = [{n for n in canonicaliser.joining if n not in subregion.nodes} for subregion in subregions]
    assert max(map(len, left)) == 1
    for subregion, without in zip(subregions, left, strict=True):
        assert all(canonicaliser.joining[n].isdisjoint(subregion.nodes) for n in without)


def rotated(q: Any, k: Any, v: Any, inverse: Any) -> Any:
    """The gradient of queries, keys and values behind rotary embeddings, for a projection and its bias. The
    embeddings' sines and cosines are computed from positions, as GPT-NeoX does."""
    batch, heads, tokens, dim = q.shape
    half = inverse.shape[0]
    angle = torch.arange(tokens)[:, None].float() * inverse
    cos, sin = (torch.cat([t, t], -1) for t in (angle.cos(), angle.sin()))

    def back(y: Any) -> Any:
        rotary, rest = y[..., : 2 * half].float(), y[..., 2 * half :]
        other = rotary * sin
        other = torch.cat((other[..., half:], -other[..., :half]), -1)
        return torch.cat(((rotary * cos + other).to(y.dtype), rest), -1)

    both = torch.cat((back(q), back(k), v), -1).permute(0, 2, 1, 3).reshape(batch * tokens, -1)
    return both, both.sum(0)


def rotated_graph(tokens: int = 2048) -> Graph:
    piece = ((4, 16, tokens, 128), bf16)
    return traced(rotated, piece, piece, piece, ((16,), f32))


def targets(region: Region) -> set[Any]:
    return {n.target for n in region.nodes}


def reads(region: Region) -> set[str]:
    return {n.name for n in region.inputs}


def test_lighter_regions_read_tables_or_gathers() -> None:
    region = first(rotated_graph())
    assert reads(region) == {"q_1", "k_1", "v_1", "inverse_1"}
    tables, plain = lighter(region, {"cos", "sin"})
    assert all(path_through_remainder(subregion) is None for subregion in (tables, plain))
    assert reads(tables) == {"q_1", "k_1", "v_1", "clone", "clone_2"}  # of 2048 x 32
    assert targets(tables).isdisjoint({aten.cos.default, aten.sin.default})
    assert aten.cat.default not in targets(plain)
    assert len(lighter(region, {"mul_1"})) == 1  # of the gradient's own size: it is read once


def test_a_table_in_half_precision_is_read_as_it_was_before_it_was_rounded() -> None:
    """A kernel of Inductor's that computes the table rounds none of it between two operators."""

    def function(large: Any, w: Any, x: Any, dy: Any, angle: Any) -> Any:
        cos, sin = (t.bfloat16() for t in (angle.cos(), angle.sin()))
        dx, dw = graphs.pair(x.view(-1, 128), (dy * cos + dy.roll(64, -1) * sin).view(-1, 128))
        return (large @ w @ w).sum(), dx, dw  # the graph holds the most elsewhere

    shape, large = ((16, 4096, 128), bf16), ((2**19, 256), bf16)
    graph = traced(function, large, ((256, 256), bf16), shape, shape, (shape[0][1:], f32))
    record = fused(graph, min_numel=Options.min_numel)
    assert {t.dtype for t in record.inputs if t.shape == shape[0][1:]} == {"f32"}


def test_last_steps_are_left_out_where_one_program_would_have_too_many_results() -> None:
    """The sums over 16 samples of 512 channels, of which one group's are added up as well."""

    def function(x: Any, dy: Any, w: Any) -> Any:
        both, db = (dy * x).sum(2), dy.sum(2)
        mean = (both * w).sum(1, keepdim=True) * 1e-6
        return dy - x * mean[:, :, None], both.sum(0), db.sum(0)

    graph = traced(function, ((16, 512, 3200), bf16), ((16, 512, 3200), bf16), ((512,), f32))
    region = first(graph)
    subregion, *_ = smaller(region, TOO_WIDE, ())
    assert set(subregion.nodes) < set(region.nodes)
    assert [tuple(n.meta["val"].shape) for n in region.outer] == [(16, 512)] * 2 + [(16, 1)] + [(512,)] * 2
    assert [tuple(n.meta["val"].shape) for n in subregion.outer] == [(16, 512)] * 2 + [(16, 1)]
    names = [n.name for n in subregion.outer]
    record, *_ = outcomes(graph, min_numel=0)
    assert isinstance(record, RegionRecord) and [n.name for n in record.outer] == names


def of_two_tensors() -> tuple[Graph, RegionSearch, Region]:
    """The gradients of both halves of a SwiGLU, each cast along rows and along columns."""
    graph = traced(lambda *x: quantised.swiglu_backward(*x), *[((256, 512), bf16)] * 3)
    search = find_regions(graph)
    region = next(search)
    assert isinstance(region, Region) and (len(region.inner), len(region.outer)) == (2, 2)
    return graph, search, region


def of_one_tensor(region: Region, why: DeclineReason) -> list[Region]:
    subregions = smaller(region, Decline(why, "for a test"), ())
    return [subregion for subregion in subregions if (len(subregion.inner), len(subregion.outer)) == (1, 1)]


@pytest.mark.parametrize("why", [DeclineReason.MEMORY, DeclineReason.ORDER])
def test_a_part_has_the_reductions_of_one_tensor(why: DeclineReason) -> None:
    _, _, region = of_two_tensors()
    first_half, other_half = (
        {*subregion.inner, *subregion.outer} for subregion in dict.fromkeys(of_one_tensor(region, why))
    )
    assert first_half | other_half == {*region.inner, *region.outer}
    assert first_half.isdisjoint(other_half)


def test_what_is_left_of_a_region_has_one_of_its_own() -> None:
    _, search, region = of_two_tensors()
    subregion, *_ = of_one_tensor(region, DeclineReason.MEMORY)
    rest = search.send(subregion)
    assert isinstance(rest, Region)
    left = {*region.inner, *region.outer} - {*subregion.inner, *subregion.outer}
    assert left <= {*rest.inner, *rest.outer}  # the graph is as it was, so that the others join it


def test_loops_outside_recompute_what_casts_of_columns_are_computed_from() -> None:
    """The sum is too much to recompute for nothing: without memory, loops behind the product do."""

    def function(x: Any, y: Any, w: Any, a: Any) -> Any:
        scaled = (x + y).float() * w
        return *quantised.mx_transposed(scaled.to(bf16)), a @ a * scaled

    graph = traced(function, *[((512, 512), bf16)] * 2, ((512,), f32), ((512, 512), bf16))
    region = first(graph)
    few = min(
        smaller(region, Decline(DeclineReason.MEMORY, "for a test"), ()), key=lambda one: len(one.outputs)
    )
    assert {*few.outputs} == {n for n in region.outputs if n.meta["val"].dtype is not f32}
    assert {*few.outputs} < {*region.outputs} and few.nodes == region.nodes
