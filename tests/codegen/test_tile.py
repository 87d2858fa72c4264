"""Kernels whose reductions end within a tile: orders of elements, orders of tiles, and machine code.

Whole texts: tests/golden.
"""

from __future__ import annotations

import collections
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from graphs import bf16, f32, merged, traced, within_tile
from offline import TARGETS, Known, compiled, needs_a_compiler, sass, spilled
from support import quantised
from support.quantised import RECIPES

from mixorder.codegen import tile_access
from mixorder.codegen.source import KernelSource
from mixorder.codegen.tile import tile_kernel
from mixorder.ir.program import BufferRole, LoopProgram
from mixorder.region.find import find_regions
from mixorder.region.region import Region
from mixorder.rewrite.canonicalise import Canonicaliser
from mixorder.schedule import tile
from mixorder.schedule.device import MEASURED as H200
from mixorder.strategies.tile import TILE

BOTH = [((256, 512), bf16)]


def transposed(x: Any, scales: Any) -> Any:
    """A cast by scales of columns, transposed."""
    return (x.float() * scales).clamp(-448, 448).to(quantised.F8).t().contiguous()


def transposed_and_not(x: Any, scales: Any) -> Any:
    return transposed(x, scales), (x * scales).to(quantised.F8)


def scaled(rows: int, cols: int) -> list[Any]:
    return [((rows, cols), bf16), ((1, cols), f32)]


def kernel_of(
    function: Any, specs: Any, extents: tuple[int, ...] = (), warps: int = 4
) -> tuple[LoopProgram, KernelSource]:
    """The program of a function and its first kernel, with the chosen tile or with this one."""
    program = merged(within_tile(traced(lambda *x: function(*x), *specs)))
    facts = tile.facts_of_tile(program)
    schedule = tile.schedule_of(extents, warps, facts) if extents else tile.choose(facts, H200)
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


def test_nothing_is_dealt_out_where_tensors_are_loaded_in_two_orders() -> None:
    """Neither order is that of all results."""
    program = merged(
        within_tile(traced(lambda x, y: quantised.mx_both(x + y.t()), *2 * [((4096, 4096), bf16)]))
    )
    schedule = tile.choose(TILE.facts(program), H200)
    assert schedule.layout.thread_rows and "dealt_" not in tile_kernel(program, schedule, "test").text


def test_maxima_beside_a_byte_that_is_stored_in_two_orders_are_comparisons() -> None:
    """triton-lang/triton#11111: ptxas writes wrong bytes beside the instruction for both."""

    def both(x: Any) -> Any:
        data, factors = quantised.squares(x)
        return data, data.t().contiguous(), factors

    def as_bytes(x: Any) -> Any:
        data, transposed, factors = both(x)
        return data, transposed.view(torch.uint8), factors

    cases = (both, True), (as_bytes, True), (quantised.squares, False), (quantised.mx_both, False)
    for function, compared in cases:
        _, source = kernel_of(function, BOTH)
        body, *_ = lines(source.text, "    return ")
        assert ("tl.where" in body) == compared and ("PropagateNan" in body) != compared
        if function is both:
            assert source.text.count("tl.store(") == 3


COMPILED = ("mx_in_place", "mx_both", "mx_transposed", "blocks_both", "squares", "swiglu_backward")


def delayed(x: Any, factor: Any) -> Any:
    """Delayed scaling, with the maxima of columns that are left of the largest element."""
    return *quantised.delayed(x, factor)[:2], x.abs().amax(0, keepdim=True)


NEWER = ("swiglu_backward", "blocks_both", "transposed_and_not")
TRANSPOSED = {"transposed": transposed, "transposed_and_not": transposed_and_not, "delayed": delayed}


@needs_a_compiler
@pytest.mark.parametrize(
    ("name", "target"),
    [
        *((name, "sm_90") for name in (*COMPILED, *TRANSPOSED)),
        # The one with the most registers, the one with the most shared memory, and one that is transposed.
        *((name, target) for name in NEWER for target in ("sm_100", "sm_120")),
    ],
)
def test_it_compiles(name: str, target: str, known: Known, tmp_path: Path) -> None:
    """All accesses of full tensors are of 16 bytes, also of those that lie the other way round."""
    if name in TRANSPOSED:
        specs = RECIPES[name].like if name in RECIPES else scaled
        program, source = kernel_of(TRANSPOSED[name], specs(16384, 4096))
    else:
        program, source = kernel_of(RECIPES[name].function, RECIPES[name].like(16384, 4096))
    gpu, device = TARGETS[target]
    if known(gpu, (program, source)):
        return
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
    3.6 gives wrong maxima of columns (docs/lab/tuning.md, "Open")."""
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
def test_packed_codes_compile(target: str, known: Known, tmp_path: Path) -> None:
    """Codes are packed within a thread, and both packed tensors are stored in whole words."""
    graph = traced(lambda x: quantised.mx4_both(x), ((16384, 4096), bf16))
    canonicaliser = Canonicaliser(graph)
    canonicaliser.begin()
    (region,) = (r for r in find_regions(graph, canonicaliser.joining) if isinstance(r, Region))
    program = merged(region)
    schedule = tile.choose(TILE.facts(program), H200)
    program = TILE.place(program, schedule)
    source, *_ = TILE.generate(program, schedule, "test")
    gpu, device = TARGETS[target]
    if known(gpu, (program, source)):
        return
    kernel = compiled(program, source, gpu)
    assert kernel.metadata.shared <= device.shared_memory and not spilled(kernel, tmp_path)
    stores = [line for line in kernel.asm["ptx"].splitlines() if "st.global" in line]
    assert len(program.role(BufferRole.OUTPUT)) == len(stores) == 4
    assert sum(".v4.b32" in line for line in stores) == 2


@needs_a_compiler
def test_powers_of_two_compile_to_no_division_and_a_maximum_to_one_instruction(known: Known) -> None:
    program, source = kernel_of(quantised.mx_both, [((16384, 4096), bf16)])
    gpu, _ = TARGETS["sm_90"]
    if known(gpu, (program, source)):
        return
    ptx = compiled(program, source, gpu).asm["ptx"]
    assert "div.rn.f32" not in ptx and ptx.count("max.NaN.f32") <= 160


def int8_clamped(x: Any) -> Any:
    """Quotients in bfloat16 are rounded and then clamped."""

    def one(blocks: Any, dim: int) -> Any:
        scale = blocks.abs().amax(dim, keepdim=True).clamp(min=1e-5) * (1 / 127)
        return torch.round(blocks / scale).clamp(-128, 127).to(torch.int8)

    rows, cols = x.shape
    return (
        one(x.view(rows, cols // 64, 64), 2).view(x.shape),
        one(x.view(rows // 64, 64, cols), 1).view(x.shape),
    )


@needs_a_compiler
@pytest.mark.parametrize("function", [quantised.int8_both, int8_clamped, quantised.uint8_both])
def test_integers_compile_to_no_division_and_one_rounding(
    function: Any, known: Known, tmp_path: Path
) -> None:
    """A cast rounds by itself, but for what is clamped or has a zero point, and clamps compare nothing."""
    program, source = kernel_of(function, [((16384, 4096), bf16)])
    gpu, _ = TARGETS["sm_90"]
    if known(gpu, (program, source)):
        return
    kernel = compiled(program, source, gpu)
    found = collections.Counter(sass(kernel, tmp_path))
    elements = 2 * 16384 * 4096 // source.grid // (32 * source.config.num_warps)
    rounded = function is not quantised.int8_both
    assert found["FCHK"] == found["CALL"] == 0  # of a division
    assert elements <= found["F2I"] <= elements * 1.25 and (found["FRND"] >= elements) == rounded
    assert rounded or found["FRND"] == 0
    assert found["FSETP"] <= elements * 1.25  # by CORRECTED, whether a remainder is finite


@needs_a_compiler
def test_the_factors_of_blocks_compile_to_quotients_in_float32(known: Known) -> None:
    short, full = (kernel_of(quantised.blocks_both, [((16384, 4096), dtype)]) for dtype in (bf16, f32))
    gpu, _ = TARGETS["sm_90"]
    if known(gpu, short, full):
        return
    ptx, wide = (compiled(*one, gpu).asm["ptx"] for one in (short, full))
    assert "f64" not in ptx and "div." not in ptx
    assert 24 <= ptx.count("rcp.approx") < 32  # of 16 rows and 8 columns of a thread; triton 3.6 has 26
    assert "f64" not in wide and wide.count("div.rn.f32") >= 24  # of float32 by float32
