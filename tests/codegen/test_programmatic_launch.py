"""Which kernels release the next one early, and wait for the one before: their text."""

from __future__ import annotations

from typing import Any

import graphs
from graphs import bf16, f32, only, pair, traced

from mixorder.codegen.programmatic_launch import RELEASE, WAIT


def scaled(x: Any, dy: Any, scale: Any) -> Any:
    """The finalisation reads a scalar, whose address does not depend on the program."""
    dx, dw = graphs.pair(x, dy)
    return dx, dw * scale


FULL = ((4096, 256), f32)


def test_nothing_overlaps_where_a_read_could_come_before_the_wait() -> None:
    """Only what depends on the program's number is sure to come after the wait."""
    plain = graphs.kernels(only(traced(pair, FULL, FULL)))[2]
    assert plain[1].waits and WAIT in plain[1].text
    main, final = graphs.kernels(only(traced(scaled, FULL, FULL, ((), bf16))))[2]
    assert "in2_ptr" in final.text
    assert RELEASE not in main.text and WAIT not in final.text and not final.waits
