"""The graph after the rewrite, and what Inductor's own passes make of it."""

from __future__ import annotations

import operator
from typing import Any

import graphs
import pytest
import torch
from graphs import bf16, f32, in_turn, only, output_args, pair, traced
from torch import nn
from torch._higher_order_ops.triton_kernel_wrap import (
    triton_kernel_wrapper_functional,
)
from torch.fx import Graph, Node
from torch.utils._sympy.functions import FloorDiv, Max, Mod

from mixorder.region.nodes import fake, size_of
from mixorder.rewrite.graph_writer import GraphWriter
from mixorder.rewrite.rewrite import copy_slices

aten = torch.ops.aten
FULL = ((512, 256), f32)


def fuse(graph: Graph) -> int:
    """Rewrite every region; how many there were."""
    count = sum(1 for _ in in_turn(graph))
    graph.lint()
    return count


def calls(graph: Graph, target: Any) -> list[Node]:
    return [n for n in graph.nodes if n.target is target]


def test_every_new_node_has_a_value_and_provenance() -> None:
    graph = graphs.backward_graph(graphs.randomised(nn.LayerNorm(64), f32), (128, 64))
    known = set(graph.nodes)
    source = only(graph).inner[0].meta
    fuse(graph)
    created = [n for n in graph.nodes if n not in known]
    assert len(created) > 6
    for node in created:
        assert "val" in node.meta
        if node.target is not operator.getitem:
            assert node.meta["original_aten"] is source["original_aten"]


def test_a_member_with_users_outside_stays_for_them() -> None:
    def function(x: Any, dy: Any, m: Any) -> Any:
        wide = dy.to(f32)
        return *pair(x, wide), wide * m.cumsum(0)

    graph = traced(function, FULL, ((512, 256), bf16), FULL)
    fuse(graph)
    (cast,) = calls(graph, torch.ops.prims.convert_element_type.default)
    assert [u.target for u in cast.users] == [aten.mul.Tensor]


def test_users_of_a_result_that_stand_before_the_kernels_move_behind_them() -> None:
    """dw is finished, and used, before the last input of the region exists."""

    def function(x: Any, dy: Any, z: Any, m: Any) -> Any:
        dw = (x * dy).sum(0)
        early = m @ dw
        late = z @ m
        return dy - x * (x * dy).sum(1, keepdim=True) + late, early

    graph = traced(function, FULL, FULL, FULL, ((256, 256), f32), in_place=True)
    assert fuse(graph) == 1
    order = {n: i for i, n in enumerate(graph.nodes)}
    last_launch = calls(graph, triton_kernel_wrapper_functional)[-1]
    early = output_args(graph)[1]
    while early.op == "call_function" and early.target is not operator.getitem:
        assert order[early] > order[last_launch]
        early = early.all_input_nodes[-1]


def test_launches_pin_the_strides_of_their_arguments() -> None:
    """Inductor would otherwise be free to pad what the kernel computes addresses for."""
    graph = graphs.layer_norm_backward(4096, 250)
    fuse(graph)
    for launch in calls(graph, triton_kernel_wrapper_functional):
        _, kwargs = launch.meta["eager_input_vals"]
        for key, arg in launch.kwargs["kwargs"].items():
            assert kwargs["kwargs"][key].stride() == arg.meta["val"].stride()


# After Inductor's passes.


def test_a_kernels_results_alias_nothing() -> None:
    """Inductor takes what lies in one storage for views of each other, and would copy an input first."""
    graph = graphs.layer_norm_backward(4096, 256)
    fuse(graph)
    results = [n for n in graph.nodes if n.target is operator.getitem]
    others = [
        n.meta["val"] for n in graph.nodes if n not in results and isinstance(n.meta.get("val"), torch.Tensor)
    ]
    storages = [val.untyped_storage()._cdata for val in (*others, *(n.meta["val"] for n in results))]
    assert len(set(storages)) == len(storages)
    launches = calls(graph, triton_kernel_wrapper_functional)
    assert all(n.args[0].meta["val"][n.args[1]] is n.meta["val"] for n in results if n.args[0] in launches)


def test_a_small_result_that_only_loops_read_is_handed_on_in_float32() -> None:
    """Eager rounds it to half precision; Inductor, with its readers in the reduction's kernel, would not."""

    def function(x: Any, dy: Any, m: Any, half: Any) -> Any:
        product = x * dy
        dw = product.sum(0)
        scale = product.mean(1, keepdim=True)
        return dy - x * product.sum(1, keepdim=True), m @ dw, half * scale, dw.cumsum(0)

    full = ((512, 256), bf16)
    graph = traced(function, full, full, ((256, 256), bf16), ((512, 128), bf16))
    region = only(graph)
    (scale,) = region.kept_fp32
    assert fake(scale).shape == (512, 1)  # a matrix product and a scan read dw from memory
    assert fuse(graph) == 1
    casts = calls(graph, torch.ops.prims.convert_element_type.default)
    (cast,) = (n for n in casts if fake(n).shape == (512, 1))
    (result,) = cast.all_input_nodes
    assert (fake(result).dtype, fake(cast).dtype) == (f32, bf16)
    assert fake(cast).stride() == (1, 1) and cast.users
    with torch._inductor.config.patch(emulate_precision_casts=True):
        assert not only(traced(function, full, full, ((256, 256), bf16), ((512, 128), bf16))).kept_fp32


@pytest.mark.parametrize("dtype", [f32, bf16])
def test_a_result_that_leaves_the_graph_has_its_dtype(dtype: torch.dtype) -> None:
    def function(x: Any, dy: Any) -> Any:
        product = x * dy
        scale = product.mean(1, keepdim=True)
        return product.sum(0), scale.view(-1), scale + 1, dy - x * product.sum(1, keepdim=True)

    graph = traced(function, ((512, 256), dtype), ((512, 256), dtype))
    assert not only(graph).kept_fp32
    fuse(graph)
    assert not calls(graph, torch.ops.prims.convert_element_type.default)


def test_the_next_region_reads_what_the_one_before_has_not_rounded() -> None:
    def function(x: Any, dy: Any, m: Any) -> Any:
        first = pair(x, dy)
        scale = (x * dy).mean(1, keepdim=True)
        z = (first[0] @ m) * scale
        return pair(z, x), first[1]

    full = ((512, 256), bf16)
    graph = traced(function, full, full, ((256, 256), bf16))
    assert fuse(graph) == 2
    assert not calls(graph, torch.ops.prims.convert_element_type.default)  # it is part of the second
    launch = calls(graph, triton_kernel_wrapper_functional)[2]
    read = [fake(n) for n in launch.all_input_nodes if n.target is operator.getitem]
    assert [v.dtype for v in read if v.shape == (512, 1)] == [f32]


def test_a_size_is_computed_from_the_sizes_of_inputs() -> None:
    """Where no node has it: a window's padding, or the stride of a dim that may be empty."""
    graph = graphs.traced_rows(pair, FULL, FULL)
    region = only(graph)
    writer = GraphWriter(graph, region)
    rows = size_of(fake(region.inputs[0]).shape[0])  # type: ignore[union-attr]
    made = writer.size(Max(1, FloorDiv(rows, 3) + Mod(7 - Mod(rows, 7), 7)))
    assert made.meta["val"].node.hint == 512 // 3 + (7 - 512 % 7) % 7  # type: ignore[union-attr]
    graph.lint()


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("wanted", [(True, True, False), (False, True, False)])
@pytest.mark.parametrize("transposed", [False, True])
def test_a_part_that_a_convolution_copies_twice_is_copied_once(
    dim: int, wanted: tuple[bool, bool, bool], transposed: bool
) -> None:
    """Two convolutions read the copy, a sum does not. A part of the batch has no gaps."""

    def function(x: Any, dy: Any, y: Any, w: Any) -> Any:
        dx, dw = pair(x, dy)
        part = dx.view(4, 8, 16, 256).permute(0, 3, 1, 2).narrow(dim, 0, (2, 128)[dim])
        how = (1, 1), (0, 0), (1, 1), transposed, (0, 0), 1, wanted
        both = [aten.convolution_backward(part, one, w, None, *how)[1] for one in (y, y.cos())]
        return *both, part.sum((0, 2, 3)), part, dw

    batch, channels = (2, 256) if dim == 0 else (4, 128)
    graph = traced(function, FULL, FULL, ((batch, channels, 8, 16), f32), ((channels, channels, 1, 1), f32))
    assert fuse(graph) == 1
    copy_slices(graph)
    graph.lint()
    found = calls(graph, aten.clone.default)
    assert len(found) == (dim == 1 and all(wanted[:2]) and not transposed)
    for copy in found:
        (part,) = copy.all_input_nodes
        first, second = copy.users
        assert first.target is second.target is aten.convolution_backward.default
        assert first.args[0] is second.args[0] is copy
        assert aten.sum.dim_IntList in {user.target for user in part.users}
        assert part in output_args(graph) and not part.meta["val"].is_contiguous()
        assert copy.meta["val"].is_contiguous(memory_format=torch.channels_last)
