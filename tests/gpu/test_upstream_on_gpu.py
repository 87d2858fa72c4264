"""Upstream's open issues on this GPU, at their sizes: mixorder has to be right; what stock does is
recorded.

`pytest --junitxml=out.xml` writes it as properties of each test: `stock` is "right", "wrong" with the
largest error, or the error that it raises. Stock may be repaired in a later version.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from support.case import Compile, Example, relative_errors
from support.compilers import OURS, STOCK, inductor
from support.inputs import poison_free_memory
from torch import Tensor
from upstream import LEFT, WOUNDS, WithToken, Wound

from mixorder.report import RegionRecord, collect

Record = Callable[[str, Any], None]
# Float64 of 131072 x 16384 takes 17 GB a tensor; the time needs the size, the numbers do not.
MIDDLE = ("185814", "179423", "175250")
UNREGIONED = ("190796",)  # a convolution's gradient may lie with its channels last


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch._dynamo.reset()
    torch.cuda.empty_cache()


def errors(example: Example, compile: Compile, exact: Sequence[Tensor]) -> list[float]:
    """Of each result; infinite where there is NaN."""
    poison_free_memory()
    found = relative_errors(example.step(compile)(), exact)
    return [error if error == error else float("inf") for error in found]


def stock_outcome(example: Example, wound: Wound, exact: Sequence[Tensor]) -> str:
    try:
        worst = max(errors(example, inductor(STOCK | wound.options), exact))
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:300]
    return "right" if worst < wound.most else f"wrong: {worst:.3g}"


@pytest.mark.parametrize("name", WOUNDS)
def test_numbers(name: str, record_property: Record) -> None:
    wound = WOUNDS[name]
    shapes = wound.case.shapes
    example = Example(wound.case, shapes.middle if name in MIDDLE else shapes.training, wound.dtype, "cuda")
    exact = example.exact(lambda function: function)
    record_property("stock", stock_outcome(example, wound, exact))
    with collect() as records:
        found = errors(example, inductor(OURS | {"mixorder_min_numel": 0} | wound.options), exact)
    record_property("mixorder", f"{max(found):.3g}")
    assert max(found) < wound.most
    assert name in UNREGIONED or any(isinstance(record, RegionRecord) for record in records)


# Where stock's numbers are wrong; the others are about time, or fail to compile.
WRONG = {name: wound for name, wound in WOUNDS.items() if name.split()[0] in ("195845", "193061", "186241")}
OPTIONS = {"default": {}, "left alone": {"mixorder_min_numel": 2**62}}


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("name", [*WRONG, *LEFT])
def test_numbers_whoever_fuses(name: str, options: str, record_property: Record) -> None:
    """At the issue's shape, also where mixorder leaves all to Inductor."""
    wound = (WRONG | LEFT)[name]
    example = Example(wound.case, wound.case.shapes.training, wound.dtype, "cuda")
    exact = example.exact(lambda function: function)
    record_property("stock", stock_outcome(example, wound, exact))
    with collect() as records:
        found = errors(example, inductor(OURS | OPTIONS[options] | wound.options), exact)
    record_property("mixorder", f"{max(found):.3g}")
    assert max(found) < wound.most
    assert options == "default" or not any(isinstance(record, RegionRecord) for record in records)


@pytest.mark.parametrize("options", OPTIONS)
def test_176375_columns_that_are_a_sum_of_symbols(options: str) -> None:
    """Upstream: a size is written as `2 * s0 + s1` for `2 * (s0 + s1)` (reconstructed)."""

    def function(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        joined = torch.cat([x, y], 1) + 1
        return joined @ joined.t()[:, :3], joined.amax(-1), joined.sum(0)

    compiled = torch.compile(function, options=OURS | OPTIONS[options])
    for first, second in ((64, 65), (100, 300)):
        inputs = [torch.randn(40961, n, device="cuda") for n in (first, second)]
        for x in inputs:
            torch._dynamo.mark_dynamic(x, 1, min=2, max=4096)
        _, largest, total = compiled(*inputs)
        _, exact_largest, exact = function(*(x.double() for x in inputs))
        assert max(relative_errors([largest, total], [exact_largest, exact])) < 1e-5


def test_186426_rows_that_are_a_sum_of_symbols(record_property: Record) -> None:
    """Upstream: the compile of s * a + s rows ends in `CantSplit` (reconstructed). What Inductor alone
    cannot compile, such as a forward without a region, it cannot compile beside mixorder either."""
    module = WithToken(768).cuda()
    sizes = [(31, 1370), (64, 577), (17, 260)]

    def run(function: Callable[[Tensor], Tensor], batch: int, tokens: int) -> Sequence[Tensor]:
        torch.manual_seed(batch)
        x = torch.randn(batch, tokens, 768, device="cuda", requires_grad=True)
        dy = torch.randn(batch, tokens + 1, 768, device="cuda")
        return torch.autograd.grad(function(x), [x, *module.parameters()], dy)

    exact = [run(module, *size) for size in sizes]
    failed: list[str] = []  # how Inductor alone fails
    for who, options in (("stock", STOCK), ("mixorder", OURS)):
        torch._dynamo.reset()
        function = torch.compile(module, options=options, dynamic=True)
        try:
            worst = max(
                max(relative_errors(run(function, *size), [t.double() for t in truth]))
                for size, truth in zip(sizes, exact, strict=True)
            )
        except Exception as error:
            message = f"{type(error).__name__}: {error}"[:300]
            record_property(who, message)
            if who == "mixorder" and message not in failed:
                raise
            failed.append(message)
            continue
        record_property(who, f"{worst:.3g}")
        assert who == "stock" or worst < 1e-5
