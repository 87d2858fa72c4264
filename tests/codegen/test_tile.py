"""The text of kernels whose reductions end within a tile, and what they compile to."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from expecttest import TestCase
from graphs import bf16, f32, merged, traced, within_tile
from offline import TARGETS, compiled, needs_a_compiler, spilled
from support import quantised
from support.quantised import RECIPES

from mixorder.codegen import tile_access
from mixorder.codegen.source import KernelSource
from mixorder.codegen.tile import tile_kernel
from mixorder.ir.program import BufferRole, LoopProgram
from mixorder.region.find import find_regions
from mixorder.region.region import Region
from mixorder.rewrite.spelled import Spelling
from mixorder.schedule import tile
from mixorder.schedule.device import H200
from mixorder.schedule.schedule import Schedule
from mixorder.strategies import TILE

BOTH = [((256, 512), bf16)]


def turned(x: Any, scales: Any) -> Any:
    """A cast by scales of columns, transposed."""
    return (x.float() * scales).clamp(-448, 448).to(quantised.F8).t().contiguous()


def turned_and_not(x: Any, scales: Any) -> Any:
    return turned(x, scales), (x * scales).to(quantised.F8)


def scaled(rows: int, cols: int) -> list[Any]:
    return [((rows, cols), bf16), ((1, cols), f32)]


def kernel_of(
    function: Any, specs: Any, extents: tuple[int, ...] = (), warps: int = 4
) -> tuple[LoopProgram, KernelSource]:
    """The program of a function and its first kernel, with the chosen tile or with this one."""
    program = merged(within_tile(traced(lambda *x: function(*x), *specs)))
    schedule: Schedule = tile.choose(TILE.facts(program), H200)
    schedule = tile.schedule_of(extents, warps) if extents else schedule
    placed = TILE.place(program, schedule)
    source, *_ = TILE.generate(placed, schedule, "test")
    return placed, source


@pytest.fixture(autouse=True)
def order_of_dims(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts are those for Triton 3.6; what is compiled is for the Triton that is here."""
    if "compile" not in request.node.name:
        monkeypatch.setattr(tile_access, "deals_from_last", lambda: False)


def lines(text: str, word: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if word in line]


class TestWhole(TestCase):
    maxDiff = None

    def test_mxfp8_along_rows_and_transposed_columns(self) -> None:
        _, source = kernel_of(quantised.mx_both, BOTH, (2, 32, 4, 32))
        self.assertExpectedInline(
            source.text,
            """\
@triton.jit
def maximum_or_nan(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def triton_mixorder_test_ea4a1657(in0_ptr, out0_ptr, out1_ptr, out2_ptr, out3_ptr):
    program = tl.program_id(0)
    j_tile = program % 4
    i_tile = program // 4
    at_x = tl.arange(0, 32)
    at_i = i_tile * 2 + tl.arange(0, 2)
    at_jy = j_tile * 128 + tl.arange(0, 128)
    tmp0 = tl.permute(tl.reshape(tl.load(in0_ptr + (512 * at_x[:, None, None] + 16384 * at_i[None, :, None] + at_jy[None, None, :])).to(tl.float32), [32, 2, 4, 32]), (1, 0, 2, 3))
    tmp1 = tl_math.abs(tmp0)
    tmp2 = tl.reduce(tmp1, 3, maximum_or_nan)[:, :, :, None]
    tmp3 = tmp2.to(tl.int32, bitcast=True)
    tmp4 = tl.full([], 23, tl.int32)
    tmp5 = (tmp3 >> tmp4).to(tl.int32)
    tmp6 = tl.full([], 255, tl.int32)
    tmp7 = (tmp5 & tmp6).to(tl.int32)
    tmp8 = tl.full([], 135, tl.int32)
    tmp9 = (tmp7 - tmp8).to(tl.int32)
    tmp10 = tl.full([], -127, tl.int32)
    tmp11 = (triton_helpers.maximum(tmp9, tmp10)).to(tl.int32)
    tmp12 = tl.full([], 128, tl.int32)
    tmp13 = (triton_helpers.minimum(tmp11, tmp12)).to(tl.int32)
    tmp14 = tl.full([], 127, tl.int32)
    tmp15 = (tmp13 + tmp14).to(tl.int32)
    tmp16 = tmp15.to(tl.uint8)
    at_ix = i_tile * 64 + tl.arange(0, 64)
    at_j = j_tile * 4 + tl.arange(0, 4)
    tl.store(out0_ptr + (16 * at_ix[:, None] + at_j[None, :]), tl.reshape(tmp16, [64, 4]))
    tmp17 = tmp16.to(tl.int32)
    tmp18 = (tmp17 << tmp4).to(tl.int32)
    tmp19 = tmp18.to(tl.float32, bitcast=True)
    tmp20 = tl.full([], 1.1754943508222875e-38, tl.float32)
    tmp21 = tl.where((tmp19 > tmp20) | (tmp19 != tmp19), tmp19, tmp20)
    tmp22 = tmp21.to(tl.int32, bitcast=True)
    tmp23 = tl.full([], 2139095040, tl.int32)
    tmp24 = (tmp23 - tmp22).to(tl.int32)
    tmp25 = tmp24.to(tl.float32, bitcast=True)
    tmp26 = tl.full([], 0.5, tl.float32)
    tmp27 = tmp25 * tmp26
    tmp28 = tmp0 * tmp27
    tmp29 = tmp28.to(tl.float8e4nv)
    tl.store(out1_ptr + (512 * at_ix[:, None] + at_jy[None, :]), tl.reshape(tmp29, [64, 128]))
    tmp30 = tl.reduce(tmp1, 1, maximum_or_nan)[:, None, :, :]
    tmp31 = tmp30.to(tl.int32, bitcast=True)
    tmp32 = (tmp31 >> tmp4).to(tl.int32)
    tmp33 = (tmp32 & tmp6).to(tl.int32)
    tmp34 = (tmp33 - tmp8).to(tl.int32)
    tmp35 = (triton_helpers.maximum(tmp34, tmp10)).to(tl.int32)
    tmp36 = (triton_helpers.minimum(tmp35, tmp12)).to(tl.int32)
    tmp37 = (tmp36 + tmp14).to(tl.int32)
    tmp38 = tmp37.to(tl.uint8)
    tl.store(out2_ptr + (8 * at_jy[:, None] + at_i[None, :]), tl.reshape(tl.permute(tl.reshape(tmp38, [2, 4, 32]), (1, 2, 0)), [128, 2]))
    tmp39 = tmp38.to(tl.int32)
    tmp40 = (tmp39 << tmp4).to(tl.int32)
    tmp41 = tmp40.to(tl.float32, bitcast=True)
    tmp42 = tl.where((tmp41 > tmp20) | (tmp41 != tmp41), tmp41, tmp20)
    tmp43 = tmp42.to(tl.int32, bitcast=True)
    tmp44 = tl.full([], 2139095040, tl.int32)
    tmp45 = (tmp44 - tmp43).to(tl.int32)
    tmp46 = tmp45.to(tl.float32, bitcast=True)
    tmp47 = tl.full([], 0.5, tl.float32)
    tmp48 = tmp46 * tmp47
    tmp49 = tmp0 * tmp48
    tmp50 = tmp49.to(tl.float8e4nv)
    tl.store(out3_ptr + (256 * at_jy[:, None] + at_ix[None, :]), tl.reshape(tl.permute(tmp50, (2, 3, 0, 1)), [128, 64]))
""",  # noqa: E501
        )

    def test_a_cast_by_scales_of_columns_transposed(self) -> None:
        _, source = kernel_of(turned, scaled(16384, 4096))
        self.assertExpectedInline(
            source.text,
            """\
@triton.jit
def triton_mixorder_test_422e4dcc(in0_ptr, in1_ptr, out0_ptr):
    program = (8191 - tl.program_id(0))
    y_tile = program % 64
    x_tile = program // 64
    dealt_x = x_tile * 128 + 16 * tl.arange(0, 8)[:, None, None] + tl.arange(0, 16)[None, :, None]
    at_y = y_tile * 64 + tl.arange(0, 64)
    tmp0 = tl.reshape(tl.load(in0_ptr + (4096 * dealt_x + at_y[None, None, :])).to(tl.float32), [128, 64])
    tmp1 = tl.reshape(tl.load(in1_ptr + (at_y)), [1, 64])
    tmp2 = tmp0 * tmp1
    tmp3 = tmp2.to(tl.float8e4nv)
    at_x = x_tile * 128 + tl.arange(0, 128)
    tl.store(out0_ptr + (16384 * at_y[:, None] + at_x[None, :]), tl.permute(tmp3, (1, 0)))
""",  # noqa: E501
        )


def test_a_number_of_blocks_that_does_not_fill_the_last_tile() -> None:
    """Masks are along blocks only: each block is whole."""
    _, source = kernel_of(quantised.mx_both, [((480, 544), bf16)], (4, 32, 2, 32))
    masks = lines(source.text, "tl.store") + lines(source.text, "tl.load")
    assert source.grid == 4 * 9 and all("<" in line for line in masks)
    assert "at_ix[:, None] < 480" in source.text and "at_jy[None, :] < 544" in source.text
    assert not any("at_" in line for line in lines(source.text, "tl.where"))


DEALT = """\
    dealt_x = 8 * tl.arange(0, 4)[:, None, None, None, None] + tl.arange(0, 8)[None, None, None, :, None]
    at_i = i_tile * 4 + tl.arange(0, 4)
    dealt_jy = j_tile * 128 + 64 * tl.arange(0, 2)[None, None, :, None, None] + tl.arange(0, 64)[None, None, None, None, :]
    tmp0 = tl.permute(tl.reshape(tl.reshape(tl.permute(tl.load(in0_ptr + (4096 * dealt_x + 131072 * at_i[None, :, None, None, None] + dealt_jy)).to(tl.float32), (0, 3, 1, 2, 4)), [32, 4, 128]), [32, 4, 4, 32]), (1, 0, 2, 3))
"""  # noqa: E501


def test_which_rows_and_columns_a_thread_and_a_warp_load() -> None:
    """Lanes are dealt columns and four groups of rows, warps blocks and halves of the columns, and a thread
    eight rows in a row. Then the value has the tile's order."""
    _, source = kernel_of(quantised.mx_both, [((16384, 4096), bf16)])
    assert DEALT in source.text
    _, masked = kernel_of(quantised.mx_both, [((480 * 32, 4128), bf16)])
    (load,) = lines(masked.text, "tl.load")
    assert "(dealt_jy < 4128), other=0" in load and "dealt_x <" not in load


def test_nothing_is_dealt_out_where_tensors_are_loaded_in_two_orders() -> None:
    """Neither order is that of all results."""
    program = merged(
        within_tile(traced(lambda x, y: quantised.mx_both(x + y.t()), *2 * [((4096, 4096), bf16)]))
    )
    schedule = tile.choose(TILE.facts(program), H200)
    assert schedule.thread_rows and "dealt_" not in tile_kernel(program, schedule, "test").text


def test_maxima_beside_a_byte_that_is_stored_in_two_orders_are_comparisons() -> None:
    """triton-lang/triton#11111: ptxas writes wrong bytes beside the instruction for both."""

    def both(x: Any) -> Any:
        data, factors = quantised.squares(x)
        return data, data.t().contiguous(), factors

    def as_bytes(x: Any) -> Any:
        data, turned, factors = both(x)
        return data, turned.view(torch.uint8), factors

    cases = (both, True), (as_bytes, True), (quantised.squares, False), (quantised.mx_both, False)
    for function, compared in cases:
        _, source = kernel_of(function, BOTH)
        body, *_ = lines(source.text, "    return ")
        assert ("tl.where" in body) == compared and ("PropagateNan" in body) != compared
        if function is both:
            assert source.text.count("tl.store(") == 3


def test_a_square_s_scale_is_one_element_of_a_tile() -> None:
    _, source = kernel_of(quantised.squares, BOTH)
    (scale,) = lines(source.text, "out0_ptr +")
    assert scale.startswith("tl.store(tl.broadcast_to(out0_ptr + (4 * i + 1 * j), [1, 1]), ")


def test_a_tile_of_one_block_has_no_dim_for_the_blocks() -> None:
    _, source = kernel_of(quantised.mx_both, BOTH, (1, 32, 1, 32), 1)
    assert source.grid == 8 * 16 and "[32, 32]" not in source.text
    (load,) = lines(source.text, "tl.load")
    assert "tl.reshape" not in load and "tl.permute" not in load


def test_programs_that_walk_through_all_tiles() -> None:
    program, whole = kernel_of(quantised.mx_both, BOTH, (2, 32, 4, 32))
    facts = tile.facts_of_tile(program)
    space = tile.TileSpace(facts, H200, tile.schedule_of((2, 32, 4, 32), 4))
    (walking,) = (s for s in space.near(space.start) if (s.programs, s.tile.num_stages) == (16, 3))
    (source,) = TILE.generate(program, walking, "test")
    assert source.grid == 16 == whole.grid and source.exact
    assert (
        "    for tile in tl.range(tl.program_id(0), 16, 16, num_stages=3):\n        program = tile\n"
        in source.text
    )
    body = whole.text.split("program = tl.program_id(0)\n")[1]
    assert source.text.split("program = tile\n")[1] == "".join(f"    {line}\n" for line in body.splitlines())


@pytest.mark.parametrize("programs", [0, 16])
def test_programs_that_begin_at_the_last_tile(programs: int) -> None:
    program, first = kernel_of(turned, scaled(256, 512), (64, 64))
    schedule = dataclasses.replace(tile.schedule_of((64, 64), 4), programs=programs)
    assert dataclasses.replace(schedule, backwards=True) in tile.TileSpace(
        tile.facts_of_tile(program), H200, schedule
    ).near(schedule)
    (source,) = TILE.generate(program, dataclasses.replace(schedule, backwards=True), "test")
    number = "tile" if programs else "tl.program_id(0)"
    assert f"program = (31 - {number})\n" in source.text and "31 -" not in first.text


def test_offsets_beyond_32_bits() -> None:
    _, small = kernel_of(quantised.mx_both, BOTH)
    _, large = kernel_of(quantised.mx_both, [((2**20, 2**12), bf16)])
    wide = "program = tl.program_id(0).to(tl.int64)"
    assert wide in large.text and wide not in small.text


def test_a_row_and_a_column_beside_the_tile() -> None:
    """Each is loaded once, as one dim, and broadcast."""

    def function(x: Any, w: Any, r: Any) -> Any:
        return quantised.mx_both(x * w * r + torch.arange(512, dtype=f32))

    specs = [((256, 512), f32), ((512,), f32), ((256, 1), f32)]
    _, source = kernel_of(function, specs, (2, 32, 4, 32))
    loads = lines(source.text, "tl.load")
    assert "tl.load(in1_ptr + (at_jy)), [1, 1, 4, 32])" in loads[1]
    assert "[2, 32, 1, 1])" in loads[2]
    assert "y = tl.arange(0, 32)[None, None, None, :]" in source.text


COMPILED = ("mx_in_place", "mx_both", "mx_transposed", "blocks_both", "squares", "swiglu_backward")


def delayed(x: Any, factor: Any) -> Any:
    """Delayed scaling, with the maxima of columns that are left of the largest element."""
    return *quantised.delayed(x, factor)[:2], x.abs().amax(0, keepdim=True)


NEWER = ("swiglu_backward", "blocks_both", "turned_and_not")
TURNED = {"turned": turned, "turned_and_not": turned_and_not, "delayed": delayed}


@needs_a_compiler
@pytest.mark.parametrize(
    ("name", "target"),
    [
        *((name, "sm_90") for name in (*COMPILED, *TURNED)),
        # The one with the most registers, the one with the most shared memory, and one that is turned.
        *((name, target) for name in NEWER for target in ("sm_100", "sm_120")),
    ],
)
def test_it_compiles(name: str, target: str, tmp_path: Path) -> None:
    """All accesses of full tensors are of 16 bytes, also of those that lie the other way round."""
    if name in TURNED:
        specs = RECIPES[name].like if name in RECIPES else scaled
        program, source = kernel_of(TURNED[name], specs(16384, 4096))
    else:
        program, source = kernel_of(RECIPES[name].function, RECIPES[name].like(16384, 4096))
    gpu, device = TARGETS[target]
    kernel = compiled(program, source, gpu)
    assert kernel.metadata.shared <= device.shared_memory
    allowed = 64 if source.registers else 0  # bytes; more threads are worth a few
    assert (spilled(kernel, tmp_path) or 0) <= allowed
    if target == "sm_90":
        ptx = kernel.asm["ptx"]
        full = [b for b in program.buffers if b.numel == 16384 * 4096]
        elements = 16384 * 4096 // source.grid // (32 * source.config.num_warps)
        wide = sum(elements * b.dtype.itemsize // 16 for b in full)
        assert ptx.count("ld.global") + ptx.count("st.global") >= wide
        found = sum(".v4.b32" in line and "global" in line for line in ptx.splitlines())
        assert found == wide
        check_rows_of_a_thread(kernel.asm["ttgir"])


def check_rows_of_a_thread(ttgir: str) -> None:
    """Rows next to each other are of one thread. With such rows in two warps, and one block of rows, Triton
    3.6 gives wrong maxima of columns (docs/tuning.md, "Open")."""
    blocked = dict(re.findall(r"(#\w+) = #ttg\.blocked<\{(.*?)\}>", ttgir))
    loads = re.findall(r"tt\.load .*: tensor<([0-9x]+)x!tt\.ptr<\w+>, (#\w+)>", ttgir)
    dealt = [blocked[name] for shape, name in loads if shape.count("x") >= 2]
    assert dealt
    for layout in dealt:
        parts = dict(re.findall(r"(\w+) = \[(.*?)\]", layout))
        order, threads, warps = (parts[k].split(", ") for k in ("order", "threadsPerWarp", "warpsPerCTA"))
        assert threads[int(order[-1])] == warps[int(order[-1])] == "1", layout


@needs_a_compiler
@pytest.mark.parametrize("target", ["sm_90", "sm_100", "sm_120"])
def test_packed_codes_compile(target: str, tmp_path: Path) -> None:
    """Codes are packed within a thread, and both packed tensors are stored in whole words."""
    graph = traced(lambda x: quantised.mx4_both(x), ((16384, 4096), bf16))
    spelling = Spelling(graph)
    spelling.begin()
    (region,) = (r for r in find_regions(graph, spelling.joining) if isinstance(r, Region))
    program = merged(region)
    schedule = tile.choose(TILE.facts(program), H200)
    program = TILE.place(program, schedule)
    source, *_ = TILE.generate(program, schedule, "test")
    gpu, device = TARGETS[target]
    kernel = compiled(program, source, gpu)
    assert kernel.metadata.shared <= device.shared_memory and not spilled(kernel, tmp_path)
    stores = [line for line in kernel.asm["ptx"].splitlines() if "st.global" in line]
    assert len(program.role(BufferRole.OUTPUT)) == len(stores) == 4
    assert sum(".v4.b32" in line for line in stores) == 2


@needs_a_compiler
def test_powers_of_two_compile_to_no_division_and_a_maximum_to_one_instruction() -> None:
    program, source = kernel_of(quantised.mx_both, [((16384, 4096), bf16)])
    ptx = compiled(program, source, TARGETS["sm_90"][0]).asm["ptx"]
    assert "div.rn.f32" not in ptx and ptx.count("max.NaN.f32") <= 160


@needs_a_compiler
def test_the_factors_of_blocks_compile_to_quotients_in_float32() -> None:
    program, source = kernel_of(quantised.blocks_both, [((16384, 4096), bf16)])
    ptx = compiled(program, source, TARGETS["sm_90"][0]).asm["ptx"]
    assert "f64" not in ptx and "div." not in ptx
    assert ptx.count("rcp.approx") == 24  # of 16 rows and 8 columns of a thread
    wide = compiled(*kernel_of(quantised.blocks_both, [((16384, 4096), f32)]), TARGETS["sm_90"][0]).asm["ptx"]
    assert "f64" not in wide and wide.count("div.rn.f32") >= 24  # of float32 by float32


def test_bytes_that_are_stored_in_both_orders_are_cast_for_each() -> None:
    recipe = quantised.RECIPES["gelu_delayed"]
    _, source = kernel_of(lambda *args: recipe.function(*args), recipe.like(16384, 4096))
    casts = re.findall(r"(tmp\d+) = tmp\d+\.to\(tl\.float8e4nv\)", source.text)
    stores = re.findall(r"tl\.store\(out\d_ptr .*\b(tmp\d+)\b", source.text)
    assert len(casts) == len(set(casts)) == 2 and casts == stores
    before, _, turned = source.text.partition(f"{casts[0]} = ")
    assert "rows_innermost(" in turned and "rows_innermost(" not in before.partition("def KERNEL")[2]
