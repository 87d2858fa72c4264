"""Inline PTX: its mark, and that a kernel that has it can be quoted."""

import ast

import graphs
import pytest
from graphs import only

from mixorder.codegen.assembly import inline, mark_of


def asm_of(text: str) -> str:
    call = ast.parse(text, mode="eval").body
    assert isinstance(call, ast.Call)
    return ast.literal_eval(call.args[0])


def test_a_mark_is_read_back() -> None:
    text = inline("carried_2", "mov.b32 $0, $1;", "=r,r", ["x"], "tl.float32")
    assert asm_of(text) == "{ .reg .b32 mixorder_carried_2; mov.b32 $0, $1; }"
    assert mark_of(asm_of(text)) == "carried_2"


@pytest.mark.parametrize("text", ["mov.b32 $0, $1;", "{ .reg .b32 mixorderlike; }", "{ .reg .b32 x; }"])
def test_others_have_no_mark(text: str) -> None:
    assert mark_of(text) is None


def test_no_register_holds_no_element() -> None:
    with pytest.raises(AssertionError):
        inline("x", "mov.b32 $0, $1;", "=r,r", ["x"], "tl.float32", pack=0)


def test_it_stands_in_a_comment_of_c() -> None:
    """Inductor's C++ wrapper puts kernels there."""
    schedules = [graphs.kernels(only(graphs.layer_norm_backward(8192, cols))) for cols in (768, 32768)]
    assert [schedule.group > 1 for _, schedule, _ in schedules] == [False, True]
    texts = [source.text for _, _, sources in schedules for source in sources]
    assert all("asm" in text and "/*" not in text and "*/" not in text for text in texts)
