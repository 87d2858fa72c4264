"""Inductor's own mix-order reductions of what mixorder leaves alone, without a GPU: they are right, or none.

Their code is written for a GPU that is not there, in a process of its own, and small kernels are interpreted.
"""

from __future__ import annotations

import functools
import re
import types
from typing import Any

import pytest
import torch
from support import stand_in

from mixorder.inductor import mix_order, versions

SCRIPT = """
import mixed_code
mixed_code.main()
"""


@functools.cache
def found() -> dict[str, dict[str, Any]]:
    """What `mixed_code.main` prints."""
    if torch.version.cuda is not None:
        pytest.skip("the stand-in for a GPU is for a CPU build of torch")
    codes: dict[str, dict[str, Any]] = stand_in.found(SCRIPT, stand_in.ON_A_GPU, TRITON_INTERPRET="1")
    return codes


def is_mixed(code: str) -> bool:
    return "MixOrderReductionGrid" in code


def summed_rows(code: str) -> list[str]:
    """What a mix-order kernel adds up over the rows of a tile."""
    values = dict(re.findall(r"^ +(tmp\d+) = (.*)$", code, re.MULTILINE))
    return [values[name] for name in re.findall(r"= (?:tl\.sum|triton_helpers\.prod)\((tmp\d+), 0\)", code)]


MASKED = ("affine", "exp", "few rows", "plain", "product", "bfloat16", "keepdim", "two dims", "s0 + s1")


@pytest.mark.parametrize("name", MASKED)
def test_195845_lanes_beyond_the_last_row_hold_the_identity(name: str) -> None:
    """They were summed with what a function makes of 0, or of memory that nobody wrote."""
    code = found()[name]["ours"]
    assert is_mixed(code)
    identity = "1.0" if name == "product" else "0.0"
    values = summed_rows(code)
    assert values and all(re.fullmatch(rf"tl\.where\(xmask, \w+, {identity}\)", value) for value in values)


@pytest.mark.parametrize("name", ["few rows", "product"])
def test_195845_numbers(name: str) -> None:
    """The kernel is run by Triton's interpreter, against float64."""
    assert found()[name]["errors"]["ours"] < 1e-6


@pytest.mark.parametrize("name", ["integers", "counts", "float64", "float64 of float32"])
def test_sums_that_float32_cannot_hold_are_not_fused(name: str) -> None:
    assert not is_mixed(found()[name]["ours"])


def test_193061_sums_that_lie_in_another_tensor_are_not_fused() -> None:
    """What was never written was a part of a table's gradient."""
    assert not is_mixed(found()["table"]["ours"])


@pytest.mark.parametrize("name", ["turned", "turned, whole", "turned twice"])
def test_sums_in_another_order_than_their_tensor_are_not_fused(name: str) -> None:
    assert not is_mixed(found()[name]["ours"])


@pytest.mark.parametrize("name", ["block pointers", "descriptors"])
def test_186241_pointers_to_one_tile_are_not_fused(name: str) -> None:
    assert is_mixed(found()[name]["ours"]) == (name == "descriptors" and versions.advances_descriptors())


@pytest.mark.parametrize("name", ["keepdim", "keepdim, multiplied"])
def test_178080_results_without_their_shape_are_not_fused(name: str) -> None:
    """With the code of an older torch. A view of the result has a shape of its own."""
    codes = found()
    assert not is_mixed(codes[name]["old"])
    assert is_mixed(codes["keepdim, viewed"]["old"]) and is_mixed(codes["plain"]["old"])


def test_178080_no_other_result_takes_the_memory_of_one_without_its_shape() -> None:
    """Where Inductor reuses memory for a tensor of the same shape, it takes the tensor as it is."""
    code = found()["keepdim, divided"]["old"]
    (total,) = re.findall(r"^ +(\w+) = workspace_0\[", code, re.MULTILINE)
    assert is_mixed(code) and f"= {total}; del {total}" not in code


def test_176375_sizes_that_are_misprinted_are_not_fused() -> None:
    """With the code of an older torch: `2 * s0 + s1` for `2 * (s0 + s1)`."""
    assert not is_mixed(found()["s0 + s1"]["old"])


@pytest.mark.parametrize("name", ["affine", "integers"])
def test_a_compile_without_mixorder_is_as_it_was(name: str) -> None:
    codes = found()[name]
    assert is_mixed(codes["stock"]) and codes["stock"] != codes["ours"]


def test_what_is_asked_of_the_version_is_what_it_does() -> None:
    """The text of a result's last sum."""
    codes = found()
    total = re.compile(r"= workspace_0\[.*\.sum\(dim=0\)(.*)$", re.MULTILINE)
    (shape,) = total.findall(codes["keepdim, viewed"]["ours"])
    assert (".view([1, 129])" in shape) == versions.keeps_shape()


def fused(*_: Any) -> bool:
    return True


def test_what_cannot_be_judged_is_not_fused(caplog: pytest.LogCaptureFixture) -> None:
    """As in a version of torch whose nodes have other names."""
    can_fuse = mix_order._if_right(fused)
    with mix_order.kept_right(strict=False):
        assert not can_fuse(object(), object())
    assert "ancestors" in caplog.text
    with mix_order.kept_right(strict=True), pytest.raises(AttributeError, match="ancestors"):
        can_fuse(object(), object())
    assert can_fuse(object(), object())  # a compile without mixorder


def node(name: str, *ancestors: str, reductions: tuple[Any, ...] = ()) -> Any:
    return types.SimpleNamespace(
        ancestors={*ancestors}, get_operation_names=lambda: {name}, get_nodes=lambda: reductions
    )


def test_a_sum_of_what_the_other_gives_is_not_fused() -> None:
    can_fuse = mix_order._if_right(fused)
    with mix_order.kept_right(strict=True):
        assert not can_fuse(node("rows"), node("columns", "rows"))
        assert not can_fuse(node("rows", "columns"), node("columns"))


def test_a_sum_joins_the_sums_over_rows_only_if_it_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = types.SimpleNamespace(node1=node("rows"), node2=node("columns"))
    one = types.SimpleNamespace(is_reduction=lambda: True)
    monkeypatch.setattr(mix_order, "_sums_over_rows", lambda _, second: second)
    joins = mix_order._if_right_sums_join(fused)
    with mix_order.kept_right(strict=True):
        for right in (True, False):
            monkeypatch.setattr(mix_order, "_is_right", lambda _, right=right: right)
            assert joins(pair, pair.node2, node("more", reductions=(one,)), ()) == right
            assert joins(pair, pair.node1, node("more", reductions=(one,)), ())
