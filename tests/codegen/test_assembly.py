"""Inline PTX: a kernel that has it can be quoted."""

import graphs
import pytest
from graphs import only

from mixorder.codegen.assembly import inline


def test_it_stands_in_a_comment_of_c() -> None:
    """Inductor's C++ wrapper puts kernels there."""
    schedules = [graphs.kernels(only(graphs.layer_norm_backward(8192, cols))) for cols in (768, 32768)]
    assert [schedule.group > 1 for _, schedule, _ in schedules] == [False, True]
    texts = [source.text for _, _, sources in schedules for source in sources]
    assert all("asm" in text and "/*" not in text and "*/" not in text for text in texts)


def test_no_register_holds_no_element() -> None:
    with pytest.raises(AssertionError):
        inline("x", "mov.b32 $0, $1;", "=r,r", ["x"], "tl.float32", pack=0)
