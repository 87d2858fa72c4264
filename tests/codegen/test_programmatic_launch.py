"""Which kernels release the next one early, and wait for the one before: their text."""

from __future__ import annotations

import dataclasses
from typing import Any

import graphs
import pytest
from graphs import bf16, f32, only, pair, traced

from mixorder.codegen.programmatic_launch import RELEASE, WAIT
from mixorder.schedule.device import H200


def scaled(x: Any, dy: Any, scale: Any) -> Any:
    """The finalisation reads a scalar, whose address does not depend on the program."""
    dx, dw = graphs.pair(x, dy)
    return dx, dw * scale


FULL = ((4096, 256), f32)


@pytest.mark.parametrize("make", [graphs.rms_norm_backward, graphs.layer_norm_backward])
@pytest.mark.parametrize("cols", [768, 32768])
def test_the_first_kernel_releases_and_the_second_waits(make: Any, cols: int) -> None:
    _, schedule, (main, final) = graphs.kernels(only(make(8192, cols)))
    assert schedule.overlap and (schedule.parts > 1) == (cols > 16384)
    assert RELEASE in main.text and WAIT not in main.text and not main.waits
    assert main.text.index("tl.range") < main.text.index(RELEASE) < main.text.index("tl.store(ws0_ptr")
    assert final.waits and WAIT in final.text and RELEASE not in final.text
    assert final.text.index(WAIT) < final.text.index("tl.load")


def test_nothing_overlaps_on_other_devices() -> None:
    alone = dataclasses.replace(H200, overlaps=False)
    _, schedule, sources = graphs.kernels(only(graphs.rms_norm_backward(8192, 768)), alone)
    assert not schedule.overlap
    assert all(RELEASE not in s.text and WAIT not in s.text and not s.waits for s in sources)


def test_nothing_overlaps_where_a_read_could_come_before_the_wait() -> None:
    """Only what depends on the program's number is sure to come after the wait."""
    plain = graphs.kernels(only(traced(pair, FULL, FULL)))[2]
    assert plain[1].waits and WAIT in plain[1].text
    main, final = graphs.kernels(only(traced(scaled, FULL, FULL, ((), bf16))))[2]
    assert "in2_ptr" in final.text
    assert RELEASE not in main.text and WAIT not in final.text and not final.waits
