"""Which operators have an effect beside their result, and what they write."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch._inductor.inductor_prims  # noqa: F401
import torch.distributed._functional_collectives  # registers the operators  # noqa: F401
from torch.fx import Graph, Node

from mixorder.region.effects import has_effect, loses_order, mutated_args

aten = torch.ops.aten
c10d = torch.ops._c10d_functional


def call(target: Any, *args: Any) -> Node:
    """A node that calls `target` with placeholders `a`, `b` where the arguments name them."""
    graph = Graph()
    nodes = {name: graph.placeholder(name) for name in ("a", "b")}
    return graph.call_function(target, torch.fx.node.map_aggregate(args, lambda x: nodes.get(x, x)))


@pytest.fixture
def custom() -> Iterator[Callable[[str], Any]]:
    """Defines an operator of a schema in a library of its own."""
    library = torch.library.Library("mixorder_test_effects", "FRAGMENT")

    def define(schema: str) -> Any:
        name = library.define(schema)
        return getattr(torch.ops.mixorder_test_effects, name).default

    yield define
    library._destroy()


@pytest.mark.parametrize(
    "node",
    [
        call(c10d.all_reduce.default, "a", "sum", "0"),
        call(c10d.wait_tensor.default, "a"),
        call(c10d.all_gather_into_tensor.default, "a", 2, "0"),
        call(aten.rand_like.default, "a"),
        call(aten.multinomial.default, "a", 3),
        call(aten.bernoulli.p, "a", 0.5),
        call(aten._scaled_dot_product_flash_attention.default, "a", "a", "a", 0.1, True),
        call(torch.ops.prims.inductor_seeds.default, 2, torch.device("cpu")),
        call(aten.copy_.default, "a", "b"),
        call(aten._foreach_add_.List, ["a"], ["b"]),
        call(aten._assert_async.msg, "a", "not true"),
        call(torch.ops.higher_order.with_effects, "a", "b"),
        call(torch.ops.higher_order.print, "text"),
        call(torch.ops.higher_order.cond, "a", None, None, ()),
        call(torch.ops.higher_order.auto_functionalized, "a"),
        call(torch.ops.higher_order.triton_kernel_wrapper_mutation),
    ],
    ids=lambda node: str(node.target),
)
def test_these_keep_their_order(node: Node) -> None:
    assert has_effect(node)


@pytest.mark.parametrize(
    "node",
    [
        call(aten.mul.Tensor, "a", "b"),
        call(aten.mm.default, "a", "b"),
        call(aten.sum.dim_IntList, "a", [0]),
        call(torch.ops.prims.convert_element_type.default, "a", torch.float32),
        call(torch.ops.higher_order.triton_kernel_wrapper_functional),
        call(torch.ops.higher_order.flex_attention_backward, "a"),
        call(aten._scaled_dot_product_flash_attention.default, "a", "a", "a", 0.0, True),
        call(aten._scaled_dot_product_efficient_attention.default, "a", "a", "a", None, True),
    ],
    ids=lambda node: str(node.target),
)
def test_these_only_compute(node: Node) -> None:
    assert not has_effect(node)


def test_nothing_is_known_of_a_custom_operator(custom: Callable[[str], Any]) -> None:
    assert has_effect(call(custom("looks_pure(Tensor x) -> Tensor"), "a"))


@pytest.mark.parametrize(
    ("node", "written"),
    [
        (call(aten.copy_.default, "a", "b"), ["a"]),
        (call(aten.copy.default, "a", "b"), []),
        (call(aten._foreach_add_.List, ["a", "b"], ["b", "b"]), ["a", "b"]),
        (call(aten._foreach_copy_.default, ["b"], ["a"]), ["b"]),
        (call(c10d.all_reduce_.default, "a", "sum", "0"), ["a"]),
        (call(c10d.all_reduce.default, "a", "sum", "0"), []),
        (call(aten.multinomial.default, "a", 3), []),
        (call(torch.ops.higher_order.with_effects, "a", "b"), []),
        (call(torch.ops.higher_order.triton_kernel_wrapper_mutation, "a", "b"), ["a", "b"]),
    ],
    ids=lambda value: str(getattr(value, "target", "")),
)
def test_what_is_written(node: Node, written: list[str]) -> None:
    assert [n.name for n in mutated_args(node)] == written


def test_a_custom_operator_writes_what_its_schema_says(custom: Callable[[str], Any]) -> None:
    operator = custom("fill_all(Tensor x, Tensor(a!)[] y) -> ()")
    assert [n.name for n in mutated_args(call(operator, "a", ["b", "a"]))] == ["b", "a"]


@pytest.mark.parametrize(
    "target",
    [
        c10d.all_reduce.default,
        c10d.wait_tensor.default,
        aten.copy_.default,
        aten.mul.Tensor,
        torch.ops.higher_order.triton_kernel_wrapper_mutation,
        aten._scaled_dot_product_flash_attention.default,  # draws nothing without dropout
    ],
    ids=str,
)
def test_inductor_orders_writes_and_collectives_by_itself(target: Any) -> None:
    assert not loses_order(call(target, "a"))


def test_inductor_does_not_keep_the_order_of_random_and_custom_operators(
    custom: Callable[[str], Any],
) -> None:
    for target in (
        aten.rand_like.default,
        torch.ops.prims.inductor_seeds.default,
        torch.ops.higher_order.with_effects,
        custom("looks_pure_as_well(Tensor x) -> Tensor"),
    ):
        assert loses_order(call(target, "a"))


def test_the_backward_of_attention_draws_nothing() -> None:
    """It gets the seed and offset of its forward, also with dropout. In GPT-2's backward under autocast
    Inductor ordered nothing for less memory, 2% more at the peak (H200, torch 2.11)."""
    backward = aten._scaled_dot_product_efficient_attention_backward.default
    names = [argument.name for argument in backward._schema.arguments]
    graph = Graph()
    args = [graph.placeholder(name) for name in names[: names.index("dropout_p")]]
    nodes = [graph.call_function(backward, (*args, 0.1, [True] * 4)) for _ in range(2)]
    assert torch.Tag.nondeterministic_seeded in backward.tags
    assert not any(map(has_effect, nodes)) and not any(map(loses_order, nodes))
    forward = aten._scaled_dot_product_efficient_attention.default
    assert has_effect(graph.call_function(forward, (*args[:3], None, True, 0.1)))
