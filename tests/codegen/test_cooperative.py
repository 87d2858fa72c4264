"""The text of kernels whose programs share rows: one whole, masks, and which sums need none."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable
from typing import Any

import graphs
import numpy
import pytest
import torch
from expecttest import TestCase
from graphs import bf16, f32, generate, only, share, traced

from mixorder.codegen.exchange_phases import groups_of, without_effect
from mixorder.codegen.source import KernelSource
from mixorder.ir.program import Carry, Compute, Load, LoopProgram, PartialAccumulate, Reduce, Ref
from mixorder.ir.reductions import SUM
from mixorder.schedule.schedule import Schedule, Tile
from mixorder.transform.cooperative import check_shareable


def kernel_of(program: LoopProgram, xblock: int = 2, **changes: int) -> KernelSource:
    """The main kernel for 8 parts of what `program` has as columns."""
    cols = int(program.tile_axes[1].size)
    part = math.ceil(cols / 8)
    numbers = {
        "num_splits": 4,
        "final_block": 16,
        "final_warps": 4,
        "parts": 8,
        "part_cols": part,
        "depth": 2,
    }
    r0_block = 1 << (part - 1).bit_length()
    schedule = Schedule(Tile(xblock, 4, 3), r0_block, **{**numbers, "depth": 2, **changes})
    return generate(share(program, schedule.parts, xblock), schedule, "test")[0]


def rms(rows: int = 64, cols: int = 16384) -> LoopProgram:
    return graphs.merged(only(graphs.rms_norm_backward(rows, cols)))


def program_of(function: Any, *specs: Any) -> LoopProgram:
    return graphs.merged(only(traced(function, *specs)))


class TestWhole(TestCase):
    maxDiff = None

    def test_rms_norm(self) -> None:
        text = kernel_of(rms()).text
        # The exchange's own text: test_exchange.py.
        lines = [
            line.split("tl.inline_asm_elementwise(")[0] + "..." if "asm" in line else line
            for line in text.splitlines()
        ]
        self.assertExpectedInline(
            "\n".join(lines),
            """\
@triton.jit
def triton_mixorder_test_ff350c87(in0_ptr, in1_ptr, in2_ptr, in3_ptr, out0_ptr, ws0_ptr, mailbox_ptr, XBLOCK: tl.constexpr, NUM_STAGES: tl.constexpr):
    R0_BLOCK: tl.constexpr = 2048
    own = tl.program_id(0) % 8
    s = tl.program_id(0) // 8
    begin, tiles = s, tl.cdiv(64, XBLOCK)
    turn = tl.full([], 0, tl.int32)
    turns = tl.full([], 1, tl.int32)
    while turn < turns:
        mine = (turn == 0) | (turn == 8)
        part = tl.where(mine, own, (own + turn) % 8)
        y = part * 2048 + tl.arange(0, R0_BLOCK)[None, :]
        tmp0 = tl.full([], 6.103515625e-05, tl.float32)
        tmp1 = tl.load(in2_ptr + (y)).to(tl.float32)
        ws0_acc = tl.full([1, R0_BLOCK], 0.0, tl.float32)
        held0_1 = tl.zeros([XBLOCK, R0_BLOCK], tl.bfloat16)
        held0_2 = tl.zeros([XBLOCK, R0_BLOCK], tl.bfloat16)
        held1_1 = tl.zeros([XBLOCK, R0_BLOCK], tl.bfloat16)
        held1_2 = tl.zeros([XBLOCK, R0_BLOCK], tl.bfloat16)
        held2_1 = tl.zeros([XBLOCK, 1], tl.float32)
        held2_2 = tl.zeros([XBLOCK, 1], tl.float32)
        missed1 = tl.full([], 0, tl.int32)
        seen1_0_0 = ...
        seen1_0_1 = ...
        for tile in tl.range(begin, tiles + 8, 4, num_stages=NUM_STAGES):
            x = (tile) * XBLOCK + tl.arange(0, XBLOCK)[:, None]
            xmask = (x < 64)
            held1_raw = tl.load(in1_ptr + (y + 16384*x), xmask, other=0, eviction_policy='evict_first')
            tmp2 = held1_raw.to(tl.float32)
            tmp3 = tl.load(in3_ptr + (x), xmask, other=0)
            held0_raw = tl.load(in0_ptr + (y + 16384*x), xmask, other=0, eviction_policy='evict_first')
            tmp4 = held0_raw.to(tl.float32)
            tmp5 = tmp2 * tmp3
            tmp6 = tmp4 * tmp1
            tmp7 = tmp5 * tmp6
            tmp8 = tl.sum(tmp7, 1)[:, None]
            tl.store(mailbox_ptr + ((x * 1 + 0) * 8 + part), tl.where(tmp8 == tmp8, tmp8, float('nan')).to(tl.int32, bitcast=True), (x < tiles * 2))
            ready1 = (tile - 8 >= 0) & (tile - 8 < tiles)
            polls = tl.where(mine & ready1 & (missed1 == 0), 16384, 0)
            total1_0_0 = ...
            missed1 = missed1 | (ready1 & (total1_0_0[0] == 0)).to(tl.int32)
            total1_0_1 = ...
            missed1 = missed1 | (ready1 & (total1_0_1[0] == 0)).to(tl.int32)
            tmp9 = tl.where(tl.arange(0, XBLOCK)[:, None] == 0, total1_0_0[1], total1_0_1[1])
            seen1_0_0 = ...
            seen1_0_1 = ...
            x = (tile - 8) * XBLOCK + tl.arange(0, XBLOCK)[:, None]
            xmask = (x >= 0) & (x < 64)
            tmp10 = held0_2.to(tl.float32)
            tmp11 = held1_2.to(tl.float32)
            tmp12 = held2_2
            tmp13 = tmp11 * tmp12
            tmp14 = tmp10 * tmp13
            ws0_acc = ws0_acc + tl.sum(tmp14, 0)[None, :]
            tmp15 = tmp10 * tmp1
            tmp16 = tmp13 * tmp0
            tmp17 = tmp16 * tmp9
            tmp18 = tmp15 - tmp17
            tmp19 = tmp18 * tmp12
            tl.store(out0_ptr + (y + 16384*x), tmp19, xmask & mine)
            held0_2 = ...
            held0_1 = held0_raw
            held1_2 = ...
            held1_1 = held1_raw
            held2_2 = ...
            held2_1 = tmp3
        tl.store(ws0_ptr + (y + 16384*s), ws0_acc, mine)
        turns = tl.where((turn == 0) & (tl.max(missed1 + tl.zeros([R0_BLOCK], tl.int32), 0) > 0), 9, turns)
        turn += 1""",  # noqa: E501
        )


def test_same_inputs_same_text() -> None:
    first, again = kernel_of(rms()), kernel_of(rms())
    assert first == again and first.grid == 4 * 8
    assert kernel_of(rms(), depth=1).name != first.name


def test_the_words_are_written_and_the_last_argument() -> None:
    source = kernel_of(rms())
    assert source.buffers[-1] == "mailbox" in source.written


@pytest.mark.parametrize(("rows", "ragged"), [(64, False), (63, True)])
@pytest.mark.parametrize("cols", [16384, 16000, 20000])
def test_masks(rows: int, cols: int, ragged: bool) -> None:
    text = kernel_of(rms(rows, cols)).text
    masks = {line.strip() for line in text.splitlines() if line.strip().startswith("ymask")}
    r0_block = 1 << (math.ceil(cols / 8) - 1).bit_length()
    part = math.ceil(cols / 8)
    assert bool(masks) == (cols != 8 * r0_block)
    for mask in masks:  # a part that does not fill its power of two ends where the next one begins
        assert f"y < {cols}" in mask and f"[None, :] < {part}" in mask
    stores = [line for line in text.splitlines() if "tl.store(out0" in line]
    assert len(stores) == 1 and all("xmask" in line and "& mine" in line for line in stores)
    late = [line for line in text.splitlines() if "xmask = (x >= 0) & " in line]
    assert len(late) == 1  # the first stage has no rows before the first one


def test_a_part_never_reads_beyond_its_columns() -> None:
    """Of the lanes of all parts, exactly one has each column."""
    for cols, parts, part_cols in ((20000, 8, 2512), (16400, 9, 1840), (16384, 8, 2048), (100, 3, 48)):
        r0_block = 1 << (part_cols - 1).bit_length()
        lanes = numpy.arange(r0_block)
        mine = [
            p * part_cols + lanes[(lanes < part_cols) & (p * part_cols + lanes < cols)] for p in range(parts)
        ]
        assert numpy.concatenate(mine).tolist() == list(range(cols))


def test_symbolic_rows() -> None:
    full = ((64, 16384), f32)
    program = graphs.merged(only(graphs.traced_rows(graphs.pair, full, full)))
    source = kernel_of(program)
    assert len(source.sizes) == 1 and f"rows = {source.sizes[0]}" in source.text
    assert "tl.cdiv(rows, XBLOCK)" in source.text and "x < rows" in source.text


def two_stages(x: Any, dy: Any, w: Any) -> Any:
    q = x * (1 / x.abs().amax(-1, keepdim=True))
    return dy * w - q * (q * dy * w).sum(-1, keepdim=True), (dy * q).sum(0)


TWO_STAGES = (two_stages, ((64, 1024), f32), ((64, 1024), f32), ((1024,), f32))


def test_a_word_is_not_told_where_the_tile_is_none_or_a_wait_was_in_vain() -> None:
    """A later stage works with what it waited for; the first one knows all it needs."""
    text = kernel_of(program_of(*TWO_STAGES)).text
    first, second = (line for line in text.splitlines() if "tl.store(mailbox_ptr" in line)
    assert "x >= 0" not in first and "failed" not in first
    assert "(x >= 0) & (failed1 == 0) & " in second
    assert text.index("failed1 = tl.max(missed1 +") < text.index(second)


def test_a_turn_for_each_part_and_exchange_tells_what_is_not_told() -> None:
    """Two exchanges: the first words of 7 others, then the second words of all 8, then the own part again."""
    text = kernel_of(program_of(*TWO_STAGES)).text
    (mine,) = re.findall(r"mine = (.+)", text)
    (other,) = re.findall(r"part = tl.where\(mine, own, (.+)\)\n", text)
    (turns,) = re.findall(r"turns = tl.where\(.+ > 0\), (\d+), turns\)", text)
    for own in range(8):
        parts = [
            own if eval(mine, {"turn": t}) else eval(other, {"own": own, "turn": t})
            for t in range(int(turns))
        ]
        assert parts[0] == parts[-1] == own
        assert sorted(parts[1:8]) == sorted(set(range(8)) - {own})
        assert sorted(parts[8:-1]) == list(range(8))


def test_each_sum_is_written_once() -> None:
    """Whoever computes a sum, and in which turn, its bits are the same: there is no other code for it."""
    for program in (rms(), program_of(*TWO_STAGES)):
        nest = share(program, 8, 2).nests[0]
        text = kernel_of(program).text
        sums = [s for s in nest.body if isinstance(s, Reduce | PartialAccumulate)]
        functions = ("tl.sum(", "tl.reduce(")
        assert sum(text.count(name) for name in functions) == len(sums)
        assert text.count("for tile in tl.range(") == 1


def test_each_stage_waits_for_its_own_tile() -> None:
    text = kernel_of(program_of(*TWO_STAGES), depth=3).text
    ready = [line.strip() for line in text.splitlines() if line.strip().startswith("ready")]
    assert ready == [
        "ready1 = (tile - 12 >= 0) & (tile - 12 < tiles)",
        "ready2 = (tile - 24 >= 0) & (tile - 24 < tiles)",
    ]
    assert "tl.range(begin, tiles + 24, 4" in text


def test_nothing_is_exchanged_without_a_reduction_over_columns() -> None:
    def function(x: Any, y: Any) -> Any:
        product = x * y
        return product, product.sum(0)

    full = ((64, 1031), bf16)  # a prime number of columns is not cut into narrower ones
    source = kernel_of(program_of(function, full, full))
    assert not any(word in source.text for word in ("mailbox", "missed", "asm", "again"))
    assert "mailbox" not in source.buffers and "for tile in tl.range(begin, tiles, 4" in source.text


def test_a_record_has_reductions_of_one_kind_and_no_more_than_a_warp_reads() -> None:
    def function(x: Any, dy: Any) -> Any:
        rows = [(x * i + dy).sum(1, keepdim=True) for i in range(9)] + [x.amax(1, keepdim=True)]
        return sum(dy * r for r in rows), (x * dy).sum(0)

    body = share(program_of(function, ((64, 256), f32), ((64, 256), f32)), 8, 1).nests[0].body
    reductions = [s for s in body if isinstance(s, Reduce)]
    assert [(g[0].kind.name, len(g)) for g in groups_of(reductions, 8)] == [
        ("sum", 4), ("sum", 4), ("sum", 1), ("amax", 1)
    ]  # fmt: skip
    assert [len(g) for g in groups_of(reductions, 17)] == [1] * 10
    grouped = [r for parts in (2, 5, 32) for r in itertools.chain(*groups_of(reductions, parts))]
    assert sorted(r.name for r in grouped) == sorted(r.name for r in reductions * 3)


# Which sums stay as they are where there is no row.

UNARY: dict[str, Callable[..., Any]] = {
    "neg": numpy.negative, "abs": numpy.abs, "tanh": numpy.tanh, "exp": numpy.exp, "sin": numpy.sin,
    "cos": numpy.cos, "identity": lambda v: v, "sqrt": numpy.sqrt, "reciprocal": lambda v: 1 / v,
    "sigmoid": lambda v: 1 / (1 + numpy.exp(-v)), "rsqrt": lambda v: 1 / numpy.sqrt(v),
    "libdevice_tanh": numpy.tanh, "square": numpy.square, "relu": lambda v: numpy.maximum(v, 0),
}  # fmt: skip
BINARY: dict[str, Callable[..., Any]] = {
    "add": numpy.add, "sub": numpy.subtract, "mul": numpy.multiply, "truediv": numpy.divide,
    "maximum": numpy.maximum, "minimum": numpy.minimum, "gt": numpy.greater, "lt": numpy.less,
    "ge": numpy.greater_equal, "eq": numpy.equal, "div": numpy.divide,
}  # fmt: skip


def evaluated(stmt: Compute, values: dict[str, Any]) -> Any:
    """A value in NumPy; NaN for an op that is not known here, so that nothing rests on it."""
    args = [values[a.name] if isinstance(a, Ref) else a for a in stmt.args]
    if stmt.op == "constant":
        return numpy.float32(args[0])
    if stmt.op == "to_dtype":
        return args[0]
    if stmt.op == "where":
        return numpy.where(args[0], args[1], args[2])
    if stmt.op in UNARY and len(args) == 1:
        return UNARY[stmt.op](args[0])
    if stmt.op in BINARY and len(args) == 2:
        return BINARY[stmt.op](*args)
    return numpy.float32("nan")


def sums_where_there_is_no_row(program: LoopProgram, other: float) -> dict[PartialAccumulate, Any]:
    """What each accumulation is given if what is loaded for a row is 0, and all else is `other`."""
    nest, row = program.nests[0], program.tile_axes[0].symbol
    deps, values, found = nest.dependence(), dict[str, Any](), {}
    with numpy.errstate(all="ignore"):
        for stmt in nest.statements:
            if isinstance(stmt, Load):
                values[stmt.name] = numpy.float32(0.0 if row in deps[stmt.name] else other)
            elif isinstance(stmt, Carry):
                values[stmt.name] = values[stmt.value.name]
            elif isinstance(stmt, Reduce):
                values[stmt.name] = numpy.float32(other)  # a total: of any row, or of none
            elif isinstance(stmt, Compute):
                values[stmt.name] = evaluated(stmt, values)
            elif isinstance(stmt, PartialAccumulate):
                found[stmt] = values[stmt.value.name]
    return found


def shared_programs() -> list[LoopProgram]:
    """Of random functions, the regions that can be shared."""
    found = []
    for seed in range(40):
        graph = traced(graphs.random_function(seed, 10, 12), *[((10, 12), f32)] * 2, ((12, 12), f32))
        for region in graphs.find_regions(graph):
            if isinstance(region, Exception):
                continue
            program = graphs.merged(region)
            try:
                check_shareable(program)
            except graphs.Decline:
                continue
            found.append(share(program, 3, 1))
    return found


@pytest.fixture(scope="module")
def programs() -> list[LoopProgram]:
    return shared_programs()


@pytest.mark.parametrize("other", [float("nan"), float("inf"), -float("inf"), 1.0, 0.0])
def test_a_sum_that_is_not_masked_is_given_zeros(other: float, programs: list[LoopProgram]) -> None:
    """Where there is no row; however large or undefined weights and totals are."""
    idle = masked = 0
    for program in programs:
        unmasked = without_effect(program.nests[0], program.tile_axes[0].symbol)
        given = sums_where_there_is_no_row(program, other)
        assert unmasked <= given.keys() and all(s.kind is SUM for s in unmasked)
        assert all(given[s] == 0 for s in unmasked)
        idle, masked = idle + len(unmasked), masked + len(given.keys() - unmasked)
    assert idle > 2 and masked > 5  # or nothing was tested


def test_what_a_weight_multiplies_is_masked() -> None:
    def function(x: Any, dy: Any, w: Any) -> Any:
        return dy * (x * dy).sum(1, keepdim=True), (x * w).sum(0), (x * dy).sum(0), torch.cos(x).sum(0)

    program = share(program_of(function, TWO_STAGES[1], TWO_STAGES[2], TWO_STAGES[3]), 4, 1)
    nest = program.nests[0]
    sums = [s for s in nest.body if isinstance(s, PartialAccumulate)]
    unmasked = without_effect(nest, program.tile_axes[0].symbol)
    assert [s in unmasked for s in sums] == [False, True, False]


def test_a_total_that_is_carried_need_not_be_zero_beyond_the_last_row() -> None:
    def function(x: Any, dy: Any, w: Any) -> Any:
        q = x * torch.log(x).amax(-1, keepdim=True)  # of zeros, minus infinity
        return dy * w - q * (q * dy * w).sum(-1, keepdim=True), (dy * q).sum(0)

    program = share(program_of(function, *TWO_STAGES[1:]), 4, 1)
    assert any(isinstance(s, Carry) and s.value.name == "amax" for s in program.nests[0].body)
    assert without_effect(program.nests[0], program.tile_axes[0].symbol) == set()


def labelled(logits: Any, labels: Any, lse: Any) -> Any:
    scaled = torch.where(labels == torch.arange(logits.shape[1]), -1.0, 0.0)
    dx = scaled - torch.exp(logits - lse) * scaled.sum(1, keepdim=True)
    return dx, dx.sum(0)


def test_a_reduction_without_a_load_over_columns_is_anchored_to_one() -> None:
    """Or a thread would have a whole row of it."""
    text = kernel_of(
        program_of(labelled, ((64, 16384), f32), ((64, 1), torch.int64), ((64, 1), f32)), num_splits=4
    ).text
    assert text.count("anchor = tl.load(") == 1 and "tl.program_id(0) < 0" in text
    assert text.count("tl.where(anchor == 0, ") == 1
    assert "anchor" not in kernel_of(rms()).text
