"""The text of kernels: one whole, and the constructs that must be there in the others."""

from __future__ import annotations

import ast
import dataclasses
import re
from typing import Any

import graphs
import pytest
import torch
from expecttest import TestCase
from graphs import bf16, f16, f32, f64, generate, only, pair, traced

from mixorder.codegen.load import load_kernel
from mixorder.codegen.persistent import persistent_kernel
from mixorder.codegen.source import KernelSource
from mixorder.schedule.device import H200
from mixorder.schedule.facts import facts_of
from mixorder.schedule.persistent import choose

FULL = ((4096, 768), f32)


def pair_of(function: Any, *specs: Any) -> tuple[KernelSource, KernelSource]:
    return graphs.kernels(only(traced(function, *specs)))[2]


def text_of(function: Any, *specs: Any) -> str:
    return "\n\n".join(k.text for k in pair_of(function, *specs))


def loop_body(text: str) -> str:
    """The lines inside the loop over row tiles."""
    lines = text.splitlines()
    start = next(i for i, line in enumerate(lines) if "tl.range" in line)
    depth = len(lines[start]) - len(lines[start].lstrip())
    inside = []
    for line in lines[start + 1 :]:
        if len(line) - len(line.lstrip()) <= depth:
            break
        inside.append(line)
    return "\n".join(inside)


class TestWhole(TestCase):
    maxDiff = None

    def show(self, graph: torch.fx.Graph) -> str:
        *_, sources = graphs.kernels(next(iter(graphs.in_turn(graph))))
        return "\n\n".join(k.text for k in sources)

    def test_layer_norm_with_bias(self) -> None:
        self.assertExpectedInline(
            self.show(graphs.layer_norm_backward(32768, 768)),
            """\
@triton.jit
def triton_mixorder_test_90672346(in0_ptr, in1_ptr, in2_ptr, in3_ptr, in4_ptr, out0_ptr, ws0_ptr, ws1_ptr, XBLOCK: tl.constexpr, NUM_STAGES: tl.constexpr):
    R0_BLOCK: tl.constexpr = 1024
    s = tl.program_id(0)
    y = tl.arange(0, R0_BLOCK)[None, :]
    ymask = y < 768
    tmp0 = tl.full([], 0.0013020833333333333, tl.float32)
    tmp1 = tl.full([], 768.0, tl.float32)
    tmp2 = tl.load(tl.broadcast_to(in2_ptr + (y), [XBLOCK, R0_BLOCK]), ymask, other=0).to(tl.float32)
    ws0_acc = tl.full([XBLOCK, R0_BLOCK], 0.0, tl.float32)
    ws1_acc = tl.full([XBLOCK, R0_BLOCK], 0.0, tl.float32)
    for tile in tl.range(s, tl.cdiv(32768, XBLOCK), 512, num_stages=NUM_STAGES):
        x = tile * XBLOCK + tl.arange(0, XBLOCK)[:, None]
        tmp3 = tl.load(in4_ptr + (x))
        tmp4 = tmp3 * tmp0
        tmp5 = tl.load(in3_ptr + (x))
        tmp6 = tl.load(in0_ptr + (y + 768*x), ymask, other=0, eviction_policy='evict_first').to(tl.float32)
        tmp7 = tmp6 * tmp2
        tmp8 = tmp7 * tmp1
        tmp9 = tl.load(in1_ptr + (y + 768*x), ymask, other=0, eviction_policy='evict_first').to(tl.float32)
        tmp10 = tmp9 - tmp5
        tmp11 = tmp10 * tmp3
        tmp12 = tmp7 * tmp11
        tmp13 = tmp6 * tmp11
        ws0_acc = ws0_acc + tmp13
        ws1_acc = ws1_acc + tmp6
        tmp14 = tl.sum(tl.where(ymask, tmp7, 0.0), 1)[:, None]
        tmp15 = tl.sum(tl.where(ymask, tmp12, 0.0), 1)[:, None]
        tmp16 = tmp8 - tmp14
        tmp17 = tmp11 * tmp15
        tmp18 = tmp16 - tmp17
        tmp19 = tmp4 * tmp18
        tl.store(out0_ptr + (y + 768*x), tmp19, ymask)
    s = tl.inline_asm_elementwise("{ .reg .b32 mixorder_pass; griddepcontrol.launch_dependents; mov.b32 $0, $1; }", "=r,r", [s], dtype=tl.int32, is_pure=True, pack=1)
    tl.store(ws0_ptr + (y + 768*s), tl.sum(ws0_acc, 0)[None, :], ymask)
    tl.store(ws1_ptr + (y + 768*s), tl.sum(ws1_acc, 0)[None, :], ymask)


@triton.jit
def triton_mixorder_test_final_4c617368(out1_ptr, out2_ptr, ws0_ptr, ws1_ptr):
    SBLOCK: tl.constexpr = 512
    YBLOCK: tl.constexpr = 16
    block = tl.inline_asm_elementwise("{ .reg .b32 mixorder_pass; griddepcontrol.wait; mov.b32 $0, $1; }", "=r,r", [tl.program_id(0)], dtype=tl.int32, is_pure=True, pack=1)
    s = tl.arange(0, SBLOCK)[:, None]
    y = block * YBLOCK + tl.arange(0, YBLOCK)[None, :]
    tmp0 = tl.load(ws0_ptr + (y + 768*s), eviction_policy='evict_first')
    tmp1 = tl.load(ws1_ptr + (y + 768*s), eviction_policy='evict_first')
    tmp2 = tl.sum(tmp0, 0)[None, :]
    tmp3 = tl.sum(tmp1, 0)[None, :]
    tl.store(out1_ptr + (y), tmp2)
    tl.store(out2_ptr + (y), tmp3)
""",  # noqa: E501
        )


def test_partials_in_fp32_are_compensated_and_added_up_in_fp64() -> None:
    main, final = pair_of(pair, FULL, FULL)
    assert "ws0_error = tl.where(" in main.text and ", 0.0)" in main.text
    (load,) = (line for line in final.text.splitlines() if "tl.load(ws0_ptr" in line)
    assert load.endswith(".to(tl.float64)") and ".to(tl.float32)" in final.text
    half = ((4096, 768), bf16)
    main, final = pair_of(pair, half, half)
    assert "error" not in main.text and "float64" not in final.text


def test_same_inputs_same_text_and_names() -> None:
    first, again = (pair_of(pair, FULL, FULL) for _ in range(2))
    assert first == again
    assert load_kernel(first[0]) is load_kernel(again[0])


def test_names_follow_the_text() -> None:
    main, final = pair_of(pair, FULL, FULL)
    other, _ = pair_of(pair, ((4096, 512), f32), ((4096, 512), f32))
    assert main.name != other.name
    assert main.name.startswith("triton_mixorder_test_") and "_final_" in final.name


@pytest.mark.parametrize("dtype", [f16, bf16, f32, f64])
def test_text_is_python_that_loads(dtype: torch.dtype) -> None:
    for source in pair_of(pair, ((100, 77), dtype), ((100, 77), dtype)):
        tree = ast.parse(source.module_text)
        (function,) = (n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef))
        assert function.name == source.name
        args = [a.arg for a in function.args.args]
        constants = [name for name, _ in source.config.constants]
        assert args == [f"{b}_ptr" for b in source.buffers] + constants
        assert load_kernel(source).configs[0].num_warps == source.config.num_warps


def test_every_full_tensor_is_loaded_once_and_streamed() -> None:
    main, _ = graphs.kernels(only(graphs.layer_norm_backward(32768, 768)))[2]
    loads = [line for line in loop_body(main.text).splitlines() if "tl.load" in line]
    full = [line for line in loads if "768*x" in line]
    assert len(full) == 2 and all("evict_first" in line for line in full)


@pytest.mark.parametrize(("tensors", "cols", "kept"), [(3, 49, True), (2, 49, False), (3, 48, False)])
def test_sectors_that_programs_share_are_not_evicted_first(tensors: int, cols: int, kept: bool) -> None:
    """Windows of 49 in bf16: a softmax's backward. H100, three tensors: 290 us with, 198 without."""

    def windows(*full: torch.Tensor) -> tuple[torch.Tensor, ...]:
        product = full[0] * full[1] if tensors == 2 else full[0] * full[1] * full[2]
        dx = product - full[1] * product.sum(-1, keepdim=True)
        return dx, dx.sum(0), dx.amax(0)

    main, final = pair_of(windows, *[((1024, 49, cols), bf16)] * tensors)
    assert ("evict_first" in main.text) != kept and "evict_first" in final.text


def test_column_loads_are_before_the_loop() -> None:
    main, _ = graphs.kernels(only(graphs.rms_norm_backward(32768, 768)))[2]
    before = main.text[: main.text.index("tl.range")]
    assert before.count("tl.load") == 1


def test_column_loads_are_spread_over_the_tile_for_a_loop_over_several() -> None:
    """A program with one tile would load each column once for each row, and spare no conversion."""
    program, schedule, _ = graphs.kernels(only(graphs.rms_norm_backward(4096, 256)))
    rows = 4096 // schedule.num_splits
    for xblock, spread in ((rows // 2, True), (rows, False)):
        tile = dataclasses.replace(schedule.tile, xblock=xblock)
        main = generate(program, dataclasses.replace(schedule, tile=tile), "test")[0].text
        before = main[: main.index("tl.range")]
        assert before.count("tl.load") == 1 and ("broadcast_to" in before) == spread


def test_no_atomics_and_no_reduction_over_rows_inside_the_loop() -> None:
    for graph in (graphs.layer_norm_backward(32768, 768), graphs.pair_graph(32768, 64)):
        main, final = graphs.kernels(only(graph))[2]
        assert "atomic" not in main.text + final.text
        assert ", 0)[None, :]" not in loop_body(main.text)


@pytest.mark.parametrize(("warps", "folds"), [(2, True), (4, False)])
def test_a_thread_that_has_all_rows_adds_them_up_before_it_compensates(warps: int, folds: bool) -> None:
    """256 columns of 4 bytes are the accesses of two warps."""
    loops, schedule, _ = graphs.kernels(only(graphs.pair_graph(4096, 256)))
    tile = dataclasses.replace(schedule.tile, xblock=4, num_warps=warps)
    text = persistent_kernel(loops, dataclasses.replace(schedule, tile=tile), "x").text
    assert (", 0)[None, :] - ws0_error" in loop_body(text)) == folds
    assert ("ws0_acc = tl.full([1, R0_BLOCK]" in text) == folds


@pytest.mark.parametrize(
    ("rows", "cols", "row_mask", "col_mask"),
    [
        (4096, 1024, False, False),
        (4096, 768, False, True),
        (4097, 64, True, False),
        (4099, 100, True, True),
    ],
)
def test_masks_are_there_where_a_tile_can_overrun(
    rows: int, cols: int, row_mask: bool, col_mask: bool
) -> None:
    main, _ = graphs.kernels(only(graphs.pair_graph(rows, cols)))[2]
    assert ("xmask" in main.text, "ymask" in main.text) == (row_mask, col_mask)


@pytest.mark.parametrize("prologue", [torch.exp, torch.cos, lambda t: t + 3])
@pytest.mark.parametrize(
    ("kind", "identity"), [("sum", "0.0"), ("amax", "float('-inf')"), ("amin", "float('inf')")]
)
def test_identity_is_put_on_what_is_accumulated(kind: str, identity: str, prologue: Any) -> None:
    def function(x: Any, dy: Any) -> Any:
        value = prologue(x) * dy
        return dy * getattr(value, kind)(1, keepdim=True), getattr(value, kind)(0)

    specs = ((4099, 100), f32), ((4099, 100), f32)
    main, final = pair_of(function, *specs)
    # The masked value of the inner reduction, and of the accumulation over rows.
    for mask in ("ymask", "xmask"):
        (line,) = (line for line in main.text.splitlines() if f"tl.where({mask}, " in line)
        assert line.count(f", {identity})") == 1
    if "smask" in final.text:
        assert f", {identity})" in final.text


def test_nan_propagates_through_max_and_min() -> None:
    def function(x: Any, dy: Any) -> Any:
        return dy * (x * dy).amax(1, keepdim=True), (x * dy).amin(0)

    text = text_of(function, FULL, FULL)
    assert ", 1, maximum_or_nan)" in text
    assert " = tl.minimum(" in text
    assert all("PropagateNan.ALL" in line for line in text.splitlines() if re.search(r"tl\.m\w+imum\(", line))


@pytest.mark.parametrize("rows", [2_800_000, 4_000_000])
def test_offsets_beyond_32_bits_are_64_bit(rows: int) -> None:
    main, _ = graphs.kernels(only(graphs.pair_graph(rows, 768)))[2]
    assert ("tl.int64" in main.text) == (rows * 768 >= 2**31)


@pytest.mark.parametrize(("samples", "wide"), [(64, False), (8192, True)])
def test_a_place_on_the_batch_axis_is_widened_with_the_rows(samples: int, wide: bool) -> None:
    """A sample's offset is its number times the size of one: beyond 2^31 although both are small."""

    def function(x: Any, dy: Any) -> Any:
        return dy - (x * dy).sum(2, keepdim=True), (x * dy).sum(1)

    full = ((samples, 1024, 512), bf16)
    (_, _, (main, *_)) = graphs.kernels(graphs.only(traced(function, full, full)))
    (line,) = [line for line in main.text.splitlines() if line.strip().startswith("k = ")]
    assert ("tl.int64" in line) == wide


def test_row_offset_cannot_wrap_before_it_is_widened() -> None:
    main, _ = graphs.kernels(only(graphs.pair_graph(4_000_000, 768)))[2]
    (line,) = (line for line in main.text.splitlines() if line.strip().startswith("x = "))
    assert "tl.int64" in line


def test_a_kernel_is_loaded_with_its_one_configuration() -> None:
    _, schedule, (main, _) = graphs.kernels(only(graphs.pair_graph(32768, 768)))
    (config,) = load_kernel(main).configs
    assert config.kwargs == {"XBLOCK": schedule.tile.xblock, "NUM_STAGES": schedule.tile.num_stages}
    assert (config.num_warps, config.num_stages) == (schedule.tile.num_warps, schedule.tile.num_stages)


def test_a_tile_that_overruns_the_rows_is_masked() -> None:
    program = graphs.merged(only(graphs.pair_graph(4096, 1024)))
    schedule = choose(facts_of(program), H200)
    wide = dataclasses.replace(schedule.tile, xblock=8192)
    assert "xmask" not in generate(program, schedule, "test")[0].text
    assert "xmask" in generate(program, dataclasses.replace(schedule, tile=wide), "test")[0].text


def test_grid_is_the_splits_and_the_column_blocks() -> None:
    program, schedule, (main, final) = graphs.kernels(only(graphs.pair_graph(32768, 768)))
    assert main.grid == schedule.num_splits
    assert final.grid == -(-768 // schedule.final_block)
    assert main.written == ("out0", "ws0") and final.written == ("out1",)


def test_a_program_that_is_not_merged_is_refused() -> None:
    from mixorder.lowering.lower import lower
    from mixorder.transform.split import split_outer

    program = split_outer(lower(only(graphs.pair_graph())))
    schedule = choose(facts_of(graphs.merged(only(graphs.pair_graph()))), H200)
    with pytest.raises(ValueError, match="one finalisation expected"):
        generate(program, schedule, "test")


UNARY = [
    "abs", "acos", "asinh", "atan", "ceil", "cos", "erf", "exp", "exp2", "expm1", "floor",
    "hardtanh", "isnan", "log", "log1p", "log2", "logical_not", "neg", "reciprocal", "relu",
    "round", "rsqrt", "sigmoid", "sign", "sin", "sqrt", "square", "tan", "tanh", "trunc",
]  # fmt: skip


def loads_with(ops: Any, dtype: torch.dtype) -> None:
    """One region computes all of the functions of two tensors."""

    def function(x: Any, dy: Any) -> Any:
        value = sum(op(x, dy) * dy for op in ops)
        return dy * value.sum(1, keepdim=True), value.sum(0)

    for source in pair_of(function, ((4096, 100), dtype), ((4096, 100), dtype)):
        ast.parse(source.text)


@pytest.mark.parametrize("dtype", [f32, bf16])
@pytest.mark.parametrize("part", range(3))
def test_pointwise_ops_are_printed(part: int, dtype: torch.dtype) -> None:
    ops = [getattr(torch, name, None) or getattr(torch.nn.functional, name) for name in UNARY[part::3]]
    loads_with([lambda x, _, op=op: op(x) for op in ops], dtype)


BINARY = {
    "add_scaled": lambda a, b: torch.add(a, b, alpha=2),
    "div": torch.div,
    "eq": lambda a, b: (a == b) * a,
    "fmod": torch.fmod,
    "lerp": lambda a, b: torch.lerp(a, b, 0.3),
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "pow": lambda a, b: a.abs() ** b,
    "cube": lambda a, b: a**3 + b,
    "where": lambda a, b: torch.where(a > b, a, b),
    "clamp": lambda a, b: a.clamp(-1, 1) * b,
    "gelu_tanh": lambda a, b: torch.nn.functional.gelu(a, approximate="tanh") * b,
    "silu": lambda a, b: torch.nn.functional.silu(a) * b,
    "logical": lambda a, b: ((a > 0) & (b > 0)) * a,
    "int_round_trip": lambda a, b: a.to(torch.int32).to(f32) * b,
    "masked_fill": lambda a, b: a.masked_fill(b > 0, 0.0),
}


@pytest.mark.parametrize("part", range(2))
def test_other_pointwise_ops_are_printed(part: int) -> None:
    loads_with([*BINARY.values()][part::2], f32)
