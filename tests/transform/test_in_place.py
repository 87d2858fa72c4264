"""An output takes the place of an input: which one, what is printed, and each reason why not."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import graphs
import pytest
import torch
import torch.nn.functional as F
from graphs import Spec, bf16, f32, merged, only, traced

from mixorder.ir.in_place import why_not
from mixorder.ir.program import Buffer, BufferRole, LoopProgram
from mixorder.ir.verify import Form, verify
from mixorder.lowering.lower import lower
from mixorder.strategies.cooperative import COOPERATIVE
from mixorder.transform.in_place import reuse_in_place

FULL, HALF, SHORT = ((512, 256), f32), ((512, 256), bf16), ((514, 256), f32)


def rms() -> LoopProgram:
    """in0 is dy, in1 is x, in2 the weight; out0 is dx, out1 is dw."""
    return merged(only(graphs.rms_norm_backward(512, 256)))


def over(program: LoopProgram) -> dict[str, str]:
    return {b.name: b.over for b in program.buffers if b.over is not None}


def buffers_named(program: LoopProgram, *kinds: str) -> list[Buffer]:
    """Outputs of the main kernel, and inputs, that are full tiles."""
    return [b for b in program.buffers if b.name.startswith(kinds) and len(b.shape) == 2 and 1 not in b.shape]


def test_two_outputs_do_not_share_an_input() -> None:
    def function(x: Any, dy: Any) -> Any:
        product = x * dy
        row = product.sum(1, keepdim=True)
        return dy - x * row, dy + x * row, product.sum(0)

    program = merged(only(traced(function, FULL, FULL)))
    both = verify(reuse_in_place(program, ("in0", "in1")), Form.MERGED)
    assert over(both) == {"out0": "in0", "out1": "in1"}
    assert over(reuse_in_place(program, ("in1",))) == {"out0": "in1"}
    buffers = tuple(dataclasses.replace(b, over="in0") if b.name == "out1" else b for b in both.buffers)
    with pytest.raises(ValueError, match="two outputs are over one input"):
        verify(dataclasses.replace(both, buffers=buffers), Form.MERGED)


def gradient(x: Any, dy: Any) -> tuple[Any, Any]:
    product = x * dy
    return dy - x * product.sum(1, keepdim=True), product.sum(0)


def another_dtype(x: Any, dy: Any) -> Any:
    dx, dw = gradient(x, dy)
    return dx.to(bf16), dw


def half_is_read(x: Any, dy: Any) -> Any:
    return gradient(x[2:], dy[:-2])


def rotated(x: Any, dy: Any) -> Any:
    return gradient(x, torch.cat([-dy[:, 128:], dy[:, :128]], 1))


def padded(x: Any, dy: Any) -> Any:
    return gradient(x, F.pad(dy[1:], (0, 0, 0, 1)))


def read_for_the_sum(x: Any, dy: Any) -> Any:
    """Only the outer reduction reads dy."""
    row = x.sum(1, keepdim=True)
    return x * row, (x * dy * row).sum(0)


REASONS: dict[str, tuple[Callable[..., Any], tuple[Spec, ...], str]] = {
    "dtype": (another_dtype, (FULL, FULL), "another dtype"),
    "size": (half_is_read, (SHORT, SHORT), "another size"),
    "gather": (rotated, (FULL, FULL), "an element is read at another place than it is written"),
    "predicate": (padded, (FULL, FULL), "an element is read at another place than it is written"),
}


@pytest.mark.parametrize("name", REASONS)
def test_an_input_that_cannot_take_dx(name: str) -> None:
    function, specs, reason = REASONS[name]
    program = merged(only(traced(function, *specs)))
    (output,) = buffers_named(program, "out")
    assert reason in {why_not(program, output, b) for b in buffers_named(program, "in")}
    names = [b.name for b in program.role(BufferRole.INPUT)]
    refused = {b for b in names if why_not(program, output, program.buffer(b))}
    assert set(over(reuse_in_place(program, names)).values()).isdisjoint(refused)


def test_other_strides() -> None:
    program = merged(only(traced(gradient, FULL, FULL)))
    output, source = program.buffer("out0"), program.buffer("in0")
    across = dataclasses.replace(source, stride=source.stride[::-1])
    assert why_not(program, output, source) is None
    assert why_not(program, output, across) == "other strides"
    wider = dataclasses.replace(source, stride=(source.stride[0] * 2, source.stride[1]))
    assert why_not(program, output, wider) == "other strides"


def test_what_only_the_outer_reduction_reads() -> None:
    program = merged(only(traced(read_for_the_sum, FULL, FULL)))
    reasons = {why_not(program, program.buffer("out0"), b) for b in buffers_named(program, "in")}
    assert reasons == {None, "the input is read for something else"}


def test_a_result_of_the_finalisation_and_what_it_reads() -> None:
    def function(x: Any, dy: Any, old: Any) -> Any:
        dx, dw = gradient(x, dy)
        return dx, old + dw

    program = merged(only(traced(function, FULL, FULL, ((256,), f32))))
    column = next(b for b in program.role(BufferRole.INPUT) if len(b.shape) == 1)
    output = next(b for b in program.role(BufferRole.OUTPUT) if len(b.shape) == 1)
    assert why_not(program, output, column) == "no kernel over all elements writes the output"


@pytest.mark.parametrize("broken", ["in2", "in3", "out0", "ws0"])
def test_the_verifier_refuses_what_cannot_be(broken: str) -> None:
    program = rms()
    buffers = tuple(dataclasses.replace(b, over=broken) if b.name == "out0" else b for b in program.buffers)
    with pytest.raises(ValueError, match=f"out0 is over {broken}"):
        verify(dataclasses.replace(program, buffers=buffers), Form.MERGED)


def test_the_verifier_refuses_it_before_the_split() -> None:
    lowered = lower(only(graphs.rms_norm_backward(512, 256)))
    buffers = tuple(dataclasses.replace(b, over="in0") if b.name == "out0" else b for b in lowered.buffers)
    with pytest.raises(ValueError, match="before the split"):
        verify(dataclasses.replace(lowered, buffers=buffers), Form.LOWERED)


def test_rows_with_the_same_gaps() -> None:
    """Logits as Inductor's forward pads them, and their gradient, which products read."""
    program = merged(only(traced(gradient, FULL, FULL)))
    _, cols = program.buffer("out0").shape
    gaps = {"stride": (cols + 8, program.buffer("out0").stride[1])}
    output, source = (dataclasses.replace(program.buffer(name), **gaps) for name in ("out0", "in0"))
    nests = tuple(dataclasses.replace(n, body=tuple(map(_with_gaps, n.body))) for n in program.nests)
    buffers = tuple({"out0": output, "in0": source}.get(b.name, b) for b in program.buffers)
    program = dataclasses.replace(program, buffers=buffers, nests=nests)
    assert over(verify(reuse_in_place(program, ("in0",)), Form.MERGED)) == {"out0": "in0"}
    assert over(reuse_in_place(program, ("in1",))) == {}  # which has none
    assert over(reuse_in_place(program, ("in0",), excluded=("out0",))) == {}


def _with_gaps(stmt: Any) -> Any:
    """A statement with its index into `in0` or `out0` for rows 264 elements apart."""
    if getattr(stmt, "buffer", None) not in ("in0", "out0"):
        return stmt
    (row,) = (s for s in stmt.index.free_symbols if stmt.index.coeff(s) == 256)
    return dataclasses.replace(stmt, index=stmt.index + 8 * row)


def test_programs_that_share_a_row_and_do_not_wait() -> None:
    """A bias gradient of rows too wide for one program. With a sum along the rows, a program that has waited
    too long recomputes the rows."""

    def bias(x: Any, dy: Any) -> Any:
        product = x * dy
        return product, product.sum(0)

    wide = ((512, 30522), bf16)
    own, waiting = (merged(only(traced(f, wide, wide))) for f in (bias, gradient))
    loops, _ = graphs.shared(own)
    assert COOPERATIVE.in_place(loops)
    assert over(verify(reuse_in_place(loops, ("in0",)), Form.COOPERATIVE)) == {"out0": "in0"}
    loops, _ = graphs.shared(waiting)
    assert not COOPERATIVE.in_place(loops)
    with pytest.raises(ValueError, match="may have to read its input again"):
        verify(reuse_in_place(loops, ("in0",)), Form.COOPERATIVE)
