"""One RMSNorm backward, bf16, 32768x768, after every stage: what the README walks through."""

from __future__ import annotations

import functools

import graphs
from expecttest import TestCase
from graphs import bf16, generate

from mixorder.ir.program import LoopProgram
from mixorder.ir.verify import Form, verify
from mixorder.lowering.lower import lower
from mixorder.region.region import Region
from mixorder.schedule.device import H200
from mixorder.schedule.facts import facts_of
from mixorder.schedule.persistent import choose
from mixorder.schedule.schedule import Schedule
from mixorder.transform.fma import form_fma
from mixorder.transform.reorder import merge, reorder
from mixorder.transform.split import split_outer


@functools.cache
def region() -> Region:
    return graphs.only(graphs.rms_norm_backward(32768, 768, bf16))


@functools.cache
def lowered() -> LoopProgram:
    return verify(lower(region()), Form.LOWERED)


@functools.cache
def split() -> LoopProgram:
    return verify(split_outer(lowered()), Form.SPLIT)


@functools.cache
def reordered() -> LoopProgram:
    return verify(reorder(split()), Form.REORDERED)


@functools.cache
def merged() -> LoopProgram:
    return verify(form_fma(merge(reordered())), Form.MERGED)


@functools.cache
def schedule() -> Schedule:
    return choose(facts_of(merged()), H200)


class TestWalkthrough(TestCase):
    maxDiff = None

    def test_1_region(self) -> None:
        text = str(region()).replace("call_function[target=torch.ops.", "[")
        self.assertExpectedInline(
            text,
            """\
region0 32768x768
  inner:   sum_1
  outer:   sum_2
  inputs:  dy_1, x_1, w_1, rstd_1
  outputs: convert_element_type_3, convert_element_type_4
    %convert_element_type : [num_users=2] = [prims.convert_element_type.default](args = (%dy_1, torch.float32), kwargs = {})
    %convert_element_type_1 : [num_users=1] = [prims.convert_element_type.default](args = (%x_1, torch.float32), kwargs = {})
    %convert_element_type_2 : [num_users=1] = [prims.convert_element_type.default](args = (%w_1, torch.float32), kwargs = {})
    %mul : [num_users=2] = [aten.mul.Tensor](args = (%convert_element_type, %convert_element_type_2), kwargs = {})
    %mul_1 : [num_users=3] = [aten.mul.Tensor](args = (%convert_element_type_1, %rstd_1), kwargs = {})
    %mul_2 : [num_users=1] = [aten.mul.Tensor](args = (%mul_1, %mul), kwargs = {})
    %sum_1 : [num_users=1] = [aten.sum.dim_IntList](args = (%mul_2, [1], True), kwargs = {})
    %div : [num_users=1] = [aten.div.Tensor](args = (%mul_1, 768), kwargs = {})
    %mul_3 : [num_users=1] = [aten.mul.Tensor](args = (%div, %sum_1), kwargs = {})
    %sub : [num_users=1] = [aten.sub.Tensor](args = (%mul, %mul_3), kwargs = {})
    %mul_4 : [num_users=1] = [aten.mul.Tensor](args = (%sub, %rstd_1), kwargs = {})
    %mul_5 : [num_users=1] = [aten.mul.Tensor](args = (%convert_element_type, %mul_1), kwargs = {})
    %sum_2 : [num_users=1] = [aten.sum.dim_IntList](args = (%mul_5, [0]), kwargs = {})
    %convert_element_type_3 : [num_users=1] = [prims.convert_element_type.default](args = (%mul_4, torch.bfloat16), kwargs = {})
    %convert_element_type_4 : [num_users=1] = [prims.convert_element_type.default](args = (%sum_2, torch.bfloat16), kwargs = {})""",  # noqa: E501
        )

    def test_2_loops(self) -> None:
        self.assertExpectedInline(
            str(lowered()),
            """\
in0: bf16[32768, 768]
in1: bf16[32768, 768]
in2: bf16[768]
in3: f32[32768, 1]
out0: bf16[32768, 768]
out1: bf16[768]
for x in row(32768):
  for y in column(768):
    %dy_1: f32 = load in0[768*x + y]
    %w_1: f32 = load in2[y]
    %mul: f32 = mul(%dy_1, %w_1)
    %x_1: f32 = load in1[768*x + y]
    %rstd_1: f32 = load in3[x]
    %mul_1: f32 = mul(%x_1, %rstd_1)
    %div: f32 = constant(0.0013020833333333333, f32)
    %div.1: f32 = mul(%mul_1, %div)
    %mul_2: f32 = mul(%mul_1, %mul)
  %sum_1: f32 = sum[y](%mul_2)
  for y in column(768):
    %mul_3: f32 = mul(%div.1, %sum_1)
    %sub: f32 = sub(%mul, %mul_3)
    %mul_4: f32 = mul(%sub, %rstd_1)
    store out0[768*x + y] = %mul_4
for y in column(768):
  for x in row(32768):
    %dy_1: f32 = load in0[768*x + y]
    %x_1: f32 = load in1[768*x + y]
    %rstd_1: f32 = load in3[x]
    %mul_1: f32 = mul(%x_1, %rstd_1)
    %mul_5: f32 = mul(%dy_1, %mul_1)
  %sum_2: f32 = sum[x](%mul_5)
  store out1[y] = %sum_2""",
        )

    def test_3_split(self) -> None:
        self.assertExpectedInline(
            str(split()),
            """\
in0: bf16[32768, 768]
in1: bf16[32768, 768]
in2: bf16[768]
in3: f32[32768, 1]
out0: bf16[32768, 768]
out1: bf16[768]
ws0: f32[num_splits, 768]
for x in row(32768):
  for y in column(768):
    %dy_1: f32 = load in0[768*x + y]
    %w_1: f32 = load in2[y]
    %mul: f32 = mul(%dy_1, %w_1)
    %x_1: f32 = load in1[768*x + y]
    %rstd_1: f32 = load in3[x]
    %mul_1: f32 = mul(%x_1, %rstd_1)
    %div: f32 = constant(0.0013020833333333333, f32)
    %div.1: f32 = mul(%mul_1, %div)
    %mul_2: f32 = mul(%mul_1, %mul)
  %sum_1: f32 = sum[y](%mul_2)
  for y in column(768):
    %mul_3: f32 = mul(%div.1, %sum_1)
    %sub: f32 = sub(%mul, %mul_3)
    %mul_4: f32 = mul(%sub, %rstd_1)
    store out0[768*x + y] = %mul_4
for y in column(768):
  for s in split(num_splits):
    for x in row(32768):
      %dy_1: f32 = load in0[768*x + y]
      %x_1: f32 = load in1[768*x + y]
      %rstd_1: f32 = load in3[x]
      %mul_1: f32 = mul(%x_1, %rstd_1)
      %mul_5: f32 = mul(%dy_1, %mul_1)
      partial_accumulate ws0[768*s + InHalves(y, 768)] add= %mul_5
for y in column(768):
  for s in split(num_splits):
    %sum_2.partial: f32 = load ws0[768*s + InHalves(y, 768)]
  %sum_2: f32 = sum[s](%sum_2.partial)
  store out1[y] = %sum_2""",
        )

    def test_4_reordered(self) -> None:
        self.assertExpectedInline(
            str(reordered()),
            """\
in0: bf16[32768, 768]
in1: bf16[32768, 768]
in2: bf16[768]
in3: f32[32768, 1]
out0: bf16[32768, 768]
out1: bf16[768]
ws0: f32[num_splits, 768]
%div: f32 = constant(0.0013020833333333333, f32)
for s in split(num_splits):
  for x in row(32768):
    %rstd_1: f32 = load in3[x]
    for y in column(768):
      %dy_1: f32 = load in0[768*x + y]
      %w_1: f32 = load in2[y]
      %mul: f32 = mul(%dy_1, %w_1)
      %x_1: f32 = load in1[768*x + y]
      %mul_1: f32 = mul(%x_1, %rstd_1)
      %div.1: f32 = mul(%mul_1, %div)
      %mul_2: f32 = mul(%mul_1, %mul)
    %sum_1: f32 = sum[y](%mul_2)
    for y in column(768):
      %mul_3: f32 = mul(%div.1, %sum_1)
      %sub: f32 = sub(%mul, %mul_3)
      %mul_4: f32 = mul(%sub, %rstd_1)
      store out0[768*x + y] = %mul_4
for s in split(num_splits):
  for x in row(32768):
    %rstd_1: f32 = load in3[x]
    for y in column(768):
      %dy_1: f32 = load in0[768*x + y]
      %x_1: f32 = load in1[768*x + y]
      %mul_1: f32 = mul(%x_1, %rstd_1)
      %mul_5: f32 = mul(%dy_1, %mul_1)
      partial_accumulate ws0[768*s + InHalves(y, 768)] add= %mul_5
for y in column(768):
  for s in split(num_splits):
    %sum_2.partial: f32 = load ws0[768*s + InHalves(y, 768)]
  %sum_2: f32 = sum[s](%sum_2.partial)
  store out1[y] = %sum_2""",
        )

    def test_5_merged(self) -> None:
        self.assertExpectedInline(
            str(merged()),
            """\
in0: bf16[32768, 768]
in1: bf16[32768, 768]
in2: bf16[768]
in3: f32[32768, 1]
out0: bf16[32768, 768]
out1: bf16[768]
ws0: f32[num_splits, 768]
once: %div: f32 = constant(0.0013020833333333333, f32)
once: %w_1: f32 = load in2[y]
for s in split(num_splits):
  for x in row(32768):
    %rstd_1: f32 = load in3[x]
    for y in column(768):
      %dy_1: f32 = load in0[768*x + y]
      %mul: f32 = mul(%dy_1, %w_1)
      %x_1: f32 = load in1[768*x + y]
      %mul_1: f32 = mul(%x_1, %rstd_1)
      %div.1: f32 = mul(%mul_1, %div)
      %mul_2: f32 = mul(%mul_1, %mul)
      %mul_5: f32 = mul(%dy_1, %mul_1)
      partial_accumulate ws0[768*s + InHalves(y, 768)] add= %mul_5
    %sum_1: f32 = sum[y](%mul_2)
    for y in column(768):
      %mul_3: f32 = mul(%div.1, %sum_1)
      %sub: f32 = sub(%mul, %mul_3)
      %mul_4: f32 = mul(%sub, %rstd_1)
      store out0[768*x + y] = %mul_4
for y in column(768):
  for s in split(num_splits):
    %sum_2.partial: f32 = load ws0[768*s + InHalves(y, 768)]
  %sum_2: f32 = sum[s](%sum_2.partial)
  store out1[y] = %sum_2""",
        )

    def test_6_schedule(self) -> None:
        self.assertExpectedInline(
            str(schedule()),
            """\
tile = Tile(xblock=2, num_warps=2, num_stages=4)
r0_block = 1024
num_splits = 512
final_block = 16
final_warps = 8
parts = 1
part_cols = 0
depth = 0
period = 1
overlap = True
chunks = 1""",
        )

    def test_7_main_kernel(self) -> None:
        main, _ = generate(merged(), schedule(), "rms_norm_backward")
        self.assertExpectedInline(
            main.text,
            """\
@triton.jit
def triton_mixorder_rms_norm_backward_1b08991f(in0_ptr, in1_ptr, in2_ptr, in3_ptr, out0_ptr, ws0_ptr, XBLOCK: tl.constexpr, NUM_STAGES: tl.constexpr):
    R0_BLOCK: tl.constexpr = 1024
    s = tl.program_id(0)
    y = tl.arange(0, R0_BLOCK)[None, :]
    ymask = y < 768
    tmp0 = tl.full([], 0.0013020833333333333, tl.float32)
    tmp1 = tl.load(tl.broadcast_to(in2_ptr + (y), [XBLOCK, R0_BLOCK]), ymask, other=0).to(tl.float32)
    ws0_acc = tl.full([XBLOCK, R0_BLOCK], 0.0, tl.float32)
    for tile in tl.range(s, tl.cdiv(32768, XBLOCK), 512, num_stages=NUM_STAGES):
        x = tile * XBLOCK + tl.arange(0, XBLOCK)[:, None]
        tmp2 = tl.load(in3_ptr + (x))
        tmp3 = tl.load(in0_ptr + (y + 768*x), ymask, other=0, eviction_policy='evict_first').to(tl.float32)
        tmp4 = tmp3 * tmp1
        tmp5 = tl.load(in1_ptr + (y + 768*x), ymask, other=0, eviction_policy='evict_first').to(tl.float32)
        tmp6 = tmp5 * tmp2
        tmp7 = tmp6 * tmp0
        tmp8 = tmp6 * tmp4
        tmp9 = tmp3 * tmp6
        ws0_acc = ws0_acc + tmp9
        tmp10 = tl.sum(tl.where(ymask, tmp8, 0.0), 1)[:, None]
        tmp11 = tmp7 * tmp10
        tmp12 = tmp4 - tmp11
        tmp13 = tmp12 * tmp2
        tl.store(out0_ptr + (y + 768*x), tmp13, ymask)
    s = tl.inline_asm_elementwise("{ .reg .b32 mixorder_pass; griddepcontrol.launch_dependents; mov.b32 $0, $1; }", "=r,r", [s], dtype=tl.int32, is_pure=True, pack=1)
    half = tl.arange(0, R0_BLOCK // 8)[:, None] * 4 + tl.arange(0, 4)[None, :]
    first, second = tl.split(tl.permute(tl.reshape(tl.sum(ws0_acc, 0)[None, :], [R0_BLOCK // 8, 2, 4]), (0, 2, 1)))
    tl.store(ws0_ptr + (half + 768*s), first, tl.arange(0, R0_BLOCK // 8)[:, None] * 8 < 768)
    tl.store(ws0_ptr + (half + 384 + 768*s), second, tl.arange(0, R0_BLOCK // 8)[:, None] * 8 < 768)
""",  # noqa: E501
        )

    def test_8_finalisation(self) -> None:
        _, final = generate(merged(), schedule(), "rms_norm_backward")
        self.assertExpectedInline(
            final.text,
            """\
@triton.jit
def triton_mixorder_rms_norm_backward_final_c1e78193(out1_ptr, ws0_ptr):
    SBLOCK: tl.constexpr = 512
    YBLOCK: tl.constexpr = 16
    block = tl.inline_asm_elementwise("{ .reg .b32 mixorder_pass; griddepcontrol.wait; mov.b32 $0, $1; }", "=r,r", [tl.program_id(0)], dtype=tl.int32, is_pure=True, pack=1)
    s = tl.arange(0, SBLOCK)[:, None]
    place = block * YBLOCK + tl.arange(0, YBLOCK)[None, :]
    y = 4*(place // 384) + 8*(((place % 384)) // 4) + ((((place % 384)) % 4))
    tmp0 = tl.load(ws0_ptr + (place + 768*s), eviction_policy='evict_first')
    tmp1 = tl.sum(tmp0, 0)[None, :]
    tl.store(out1_ptr + (y), tmp1)
""",  # noqa: E501
        )
