"""Which values have to be rounded where one of them is compared with another one that is computed from it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from graphs import bf16, f16, f32, traced

from mixorder.region.comparisons import roundings

aten = torch.ops.aten
ROWS, COLS = 64, 256
Function = Callable[[Any, Any], Any]


def backward(function: Function) -> Function:
    """A joint graph: the function, and the gradients of the sum of its results."""

    def joint(x: Any, w: Any) -> Any:
        with torch.enable_grad():
            x, w = x.detach().requires_grad_(), w.detach().requires_grad_()
            out = function(x, w)
            return out, torch.autograd.grad(out.float().sum(), (x, w))

    return joint


def rounded(function: Function, dtype: torch.dtype = bf16) -> set[str]:
    """The operators that round, by name."""
    graph = traced(function, ((ROWS, COLS), dtype), ((COLS,), dtype))
    return {node.name for node in roundings(graph)}


COMPARED: dict[str, Function] = {
    "amax": backward(lambda x, w: (x * w).amax(-1)),
    "amin": backward(lambda x, w: (x * w).amin(-1)),
    "max of all": backward(lambda x, w: (x * w).max()),
    "norm": backward(lambda x, w: torch.linalg.vector_norm(x * w, float("inf"), -1)),
    "in float32": backward(lambda x, w: (x * w).float().amax(-1)),
    "eq": lambda x, w: x * w == (x * w).amax(-1, keepdim=True),
    "ge": lambda x, w: x * w >= (x * w).amax(-1, keepdim=True),
    "topk": lambda x, w: x * w >= (x * w).topk(4, -1).values[..., -1:],
    "sort": lambda x, w: x * w < (x * w).sort(-1).values[..., 4:5],
    "median": lambda x, w: x * w < (x * w).median(-1, keepdim=True).values,
    "isclose": lambda x, w: torch.isclose(x * w, (x * w).amax(-1, keepdim=True)),
    "difference": lambda x, w: (x * w - (x * w).amax(-1, keepdim=True)) == 0,
    "sign": lambda x, w: torch.sign(x * w - (x * w).amax(-1, keepdim=True)),
    "magnitude": lambda x, w: (x * w - (x * w).amax(-1, keepdim=True)).abs() > 0,
    "quotient": lambda x, w: torch.floor(x * w / (x * w).amax(-1, keepdim=True)),
    "to int": lambda x, w: (x * w / (x * w).amax(-1, keepdim=True)).to(torch.int32),
    "remainder": lambda x, w: (x * w) % (x * w).amax(-1, keepdim=True),
    "fmod": lambda x, w: torch.fmod(x * w, (x * w).amax(-1, keepdim=True)),
    "pooled": lambda x, w: F.max_pool2d((x * w)[None], 3, 1, 1) == (x * w)[None],
}


@pytest.mark.parametrize(("name", "dtype"), [(name, (bf16, f16)[i % 2]) for i, name in enumerate(COMPARED)])
def test_what_is_compared_with_a_version_of_itself_is_rounded(name: str, dtype: torch.dtype) -> None:
    assert any(op.startswith("mul") for op in rounded(COMPARED[name], dtype))


def test_all_on_the_way_is_rounded() -> None:
    """A value on the way may be stored in one of both graphs, and not in the other."""

    def function(x: Any, w: Any) -> Any:
        return (torch.exp(x * w) * F.silu(w)).amax(-1)

    graph = traced(backward(function), ((ROWS, COLS), bf16), ((COLS,), bf16))
    (largest,) = (n for n in graph.nodes if n.target is aten.amax.default)
    (equal,) = (n for n in graph.nodes if n.target is aten.eq.Tensor)
    halves = [
        n for n in graph.nodes if n < largest and n.op == "call_function" and n.meta["val"].dtype == bf16
    ]
    assert len(halves) == 4  # two products, an exponential and the cast in silu
    assert set(roundings(graph)) >= {*halves, equal}
    assert largest not in roundings(graph)


def test_an_expression_that_is_written_twice_is_rounded_twice() -> None:
    """AOTAutograd makes one of both, the first one, when the graph is divided."""
    graph = traced(
        lambda x, w: ((x * w).sum(0), x * w == (x * w).amax(-1, keepdim=True)),
        *[((ROWS, COLS), bf16), ((COLS,), bf16)],
    )
    assert [n.name for n in roundings(graph)] == ["mul", "mul_1", "mul_2", "eq"]


def test_a_sum_is_rounded_where_it_is_compared() -> None:
    def function(x: Any, w: Any) -> Any:
        total = x.sum(-1)
        return total == total.amax()

    assert rounded(function) == {"eq"}


def test_two_random_numbers_are_not_one() -> None:
    def function(x: Any, w: Any) -> Any:
        one, other = (torch.rand_like(x) * 2 for _ in range(2))
        return one == other.amax(-1, keepdim=True)

    assert rounded(function) == set()


NEVER_ROUNDED: dict[str, Function] = {
    "relu": backward(lambda x, w: torch.relu(x * w)),
    "clamp": backward(lambda x, w: torch.clamp(x * w, -1, 1)),
    "norm and relu": backward(lambda x, w: torch.relu(F.rms_norm(x, (COLS,), w))),
    "layer norm and gelu": backward(lambda x, w: F.gelu(F.layer_norm(x, (COLS,), w))),
    "softmax": backward(lambda x, w: torch.softmax(x * w, -1)),
    "logsumexp": backward(lambda x, w: torch.logsumexp(x * w, -1)),
    "stored": backward(lambda x, w: x.amax(-1) * w.sum()),
    "matmul": backward(lambda x, w: (x @ x.t()).amax(-1) * w.sum()),
    "not compared": backward(lambda x, w: x * w / (x * w).detach().amax(-1, keepdim=True)),
    "bytes": lambda x, w: torch.round(x * w / ((x * w).abs().amax(-1, keepdim=True) / 127)).to(torch.int8),
    "two tensors": lambda x, w: x * 2 == w * 2,
}


@pytest.mark.parametrize("name", NEVER_ROUNDED)
def test_nothing_else_is(name: str) -> None:
    assert rounded(NEVER_ROUNDED[name]) == set()


def test_nothing_is_in_float32() -> None:
    assert rounded(COMPARED["amax"], f32) == set()
