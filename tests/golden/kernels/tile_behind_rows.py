"""H200, blocks in a tile: RMSNorm's backward, and MXFP8 both ways of dx, 2048x12000: rows that are read in parts."""

# 8946 programs of 4 warps
@triton.jit
def row_values(in0_ptr, in1_ptr, in2_ptr, in3_ptr, mailbox_ptr, r):
    tmp0 = tl.load(in1_ptr + (r))
    tmp1 = tl.full([], 12000.0, tl.float32)
    tmp2 = tl.full([4096], 0.0, tl.float32)
    for c_tile in tl.static_range(3):
        at_c = c_tile * 4096 + tl.arange(0, 4096)
        tmp3 = tl.load(in2_ptr + (12000 * r + at_c), (at_c < 12000), other=0).to(tl.float32)
        tmp4 = tl.load(in3_ptr + (at_c), (at_c < 12000), other=0).to(tl.float32)
        tmp5 = tmp3 * tmp4
        tmp6 = tl.load(in0_ptr + (12000 * r + at_c), (at_c < 12000), other=0).to(tl.float32)
        tmp7 = tmp6 * tmp0
        tmp8 = tmp7 * tmp5
        c = c_tile * 4096 + tl.arange(0, 4096)[:]
        tmp2 = tmp2 + tl.where(c < 12000, tmp8, 0.0)
    tmp9 = tl.sum(tmp2, 0)[None]
    tmp10 = tl.div_rn(tmp9, tmp1)
    tl.store(tl.broadcast_to(mailbox_ptr + (r), [1]), tl.where(tmp10 == tmp10, tmp10, float('nan')).to(tl.int32, bitcast=True))


@triton.jit
def maximum_or_nan(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def rows_innermost(value):
    even, odd = tl.split(value)
    first, second = tl.split(even)
    third, fourth = tl.split(odd)
    return tl.join(tl.join(first, third), tl.join(second, fourth))


@triton.jit
def triton_mixorder_sum_a4df5a6f(in0_ptr, in1_ptr, in2_ptr, in3_ptr, out1_ptr, out3_ptr, mailbox_ptr, ws0_ptr, stage0_ptr, stage1_ptr):
    number = tl.atomic_add(mailbox_ptr + 2048, 1, sem="relaxed") + 1
    group = number // 126
    turn = number % 126
    if turn < 32:
        if group * 32 + turn < 2048:
            row_values(in0_ptr, in1_ptr, in2_ptr, in3_ptr, mailbox_ptr, group * 32 + turn)
    elif group >= 7:
        i = group - 7
        j_tile = turn - 32
        at_x = tl.arange(0, 32)
        tmp0 = tl.reshape(tl.load(in1_ptr + (32 * i + at_x)), [32, 1, 1])
        dealt_x = tl.arange(0, 4)[:, None, None, None] + 4 * tl.arange(0, 8)[None, None, :, None]
        dealt_jy = j_tile * 128 + 32 * tl.arange(0, 4)[None, :, None, None] + tl.arange(0, 32)[None, None, None, :]
        tmp1 = tl.reshape(tl.reshape(tl.permute(tl.load(in2_ptr + (384000 * i + 12000 * dealt_x + dealt_jy), (dealt_jy < 12000), other=0).to(tl.float32), (2, 0, 1, 3)), [32, 128]), [32, 4, 32])
        at_jy = j_tile * 128 + tl.arange(0, 128)
        tmp2 = tl.reshape(tl.load(in3_ptr + (at_jy), (at_jy < 12000), other=0).to(tl.float32), [1, 4, 32])
        tmp3 = tmp1 * tmp2
        tmp4 = tl.reshape(tl.reshape(tl.permute(tl.load(in0_ptr + (384000 * i + 12000 * dealt_x + dealt_jy), (dealt_jy < 12000), other=0).to(tl.float32), (2, 0, 1, 3)), [32, 128]), [32, 4, 32])
        tmp5 = tmp4 * tmp0
        tmp6 = tmp1 * tmp5
        s = i
        tl.store(ws0_ptr + (12000 * s + at_jy), tl.reshape(tl.sum(tmp6, 0)[None, :, :], [128]), (at_jy < 12000))
        tmp7 = tl.load(mailbox_ptr + (32 * i + at_x), volatile=True)
        polls = tl.full([], 16384, tl.int32)
        while (tl.min((tmp7 != -1).to(tl.int32)) == 0) & (polls > 0):
            tmp7 = tl.inline_asm_elementwise("{ .reg .b32 mixorder_awaited; .reg .pred p; setp.eq.s32 p, $2, -1; mov.b32 $0, $2; @p ld.relaxed.gpu.global.b32 $0, [$1]; }", "=&r,l,r", [(mailbox_ptr + (32 * i + at_x)).to(tl.int64), tmp7], dtype=tl.int32, is_pure=False, pack=1)
            polls -= 1
        tmp7 = tl.inline_asm_elementwise("{ .reg .b32 mixorder_awaited; .reg .pred p; setp.eq.s32 p, $2, -1; mov.b32 $0, $2; @p ld.relaxed.gpu.global.b32 $0, [$1]; }", "=&r,l,r", [(mailbox_ptr + (32 * i + at_x)).to(tl.int64), tmp7], dtype=tl.int32, is_pure=False, pack=1)
        if tl.inline_asm_elementwise("{ .reg .b32 mixorder_late; .reg .pred p; setp.eq.s32 p, $1, 0; bar.red.or.pred p, 0, p; selp.b32 $0, 1, 0, p; }", "=r,r", [polls], dtype=tl.int32, is_pure=False, pack=1) == 0:
            tmp8 = tl.reshape(tmp7, [32, 1, 1])
            tmp9 = tmp8.to(tl.float32, bitcast=True)
            tmp10 = tmp5 * tmp9
            tmp11 = tmp3 - tmp10
            tmp12 = tmp0 * tmp11
            tmp13 = tl.inline_asm_elementwise("{ .reg .b32 mixorder_rounded_to_bfloat16; .reg .b32 p; cvt.rn.bf16x2.f32 p, $3, $2; shl.b32 $0, p, 16; and.b32 $1, p, 0xffff0000; }", "=f,=f,f,f", [tmp12], dtype=tl.float32, is_pure=True, pack=2)
            tmp14 = tl_math.abs(tmp13)
            tmp15 = tl.reduce(tmp14, 2, maximum_or_nan)[:, :, None]
            tmp16 = tmp15.to(tl.int32, bitcast=True)
            tmp17 = tl.full([], 23, tl.int32)
            tmp18 = (tmp16 >> tmp17).to(tl.int32)
            tmp19 = tl.full([], 255, tl.int32)
            tmp20 = (tmp18 & tmp19).to(tl.int32)
            tmp21 = tl.full([], 135, tl.int32)
            tmp22 = (tmp20 - tmp21).to(tl.int32)
            tmp23 = tl.full([], -127, tl.int32)
            tmp24 = (triton_helpers.maximum(tmp22, tmp23)).to(tl.int32)
            tmp25 = tl.full([], 128, tl.int32)
            tmp26 = (triton_helpers.minimum(tmp24, tmp25)).to(tl.int32)
            tmp27 = tl.full([], 127, tl.int32)
            tmp28 = (tmp26 + tmp27).to(tl.int32)
            tmp29 = tmp28.to(tl.uint8)
            at_j = j_tile * 4 + tl.arange(0, 4)
            tl.store(stage0_ptr + (32 * i + 2048 * at_j[:, None] + at_x[None, :]), tl.permute(tl.reshape(tmp29, [32, 4]), (1, 0)), (at_j[:, None] < 375))
            tmp30 = tmp29.to(tl.int32)
            tmp31 = (tmp30 << tmp17).to(tl.int32)
            tmp32 = tmp31.to(tl.float32, bitcast=True)
            tmp33 = tl.full([], 1.1754943508222875e-38, tl.float32)
            tmp34 = tl.where((tmp32 > tmp33) | (tmp32 != tmp32), tmp32, tmp33)
            tmp35 = tmp34.to(tl.int32, bitcast=True)
            tmp36 = tl.full([], 2139095040, tl.int32)
            tmp37 = (tmp36 - tmp35).to(tl.int32)
            tmp38 = tmp37.to(tl.float32, bitcast=True)
            tmp39 = tl.full([], 0.5, tl.float32)
            tmp40 = tmp38 * tmp39
            tmp41 = tmp13 * tmp40
            tmp42 = tmp41.to(tl.float8e4nv)
            tl.store(out1_ptr + (384000 * i + 12000 * at_x[:, None] + at_jy[None, :]), tl.reshape(tmp42, [32, 128]), (at_jy[None, :] < 12000))
            tmp43 = tl.reduce(tmp14, 0, maximum_or_nan)[None, :, :]
            tmp44 = tmp43.to(tl.int32, bitcast=True)
            tmp45 = (tmp44 >> tmp17).to(tl.int32)
            tmp46 = (tmp45 & tmp19).to(tl.int32)
            tmp47 = (tmp46 - tmp21).to(tl.int32)
            tmp48 = (triton_helpers.maximum(tmp47, tmp23)).to(tl.int32)
            tmp49 = (triton_helpers.minimum(tmp48, tmp25)).to(tl.int32)
            tmp50 = (tmp49 + tmp27).to(tl.int32)
            tmp51 = tmp50.to(tl.uint8)
            tl.store(stage1_ptr + (12000 * i + at_jy), tl.reshape(tmp51, [128]), (at_jy < 12000))
            tmp52 = tmp51.to(tl.int32)
            tmp53 = (tmp52 << tmp17).to(tl.int32)
            tmp54 = tmp53.to(tl.float32, bitcast=True)
            tmp55 = tl.where((tmp54 > tmp33) | (tmp54 != tmp54), tmp54, tmp33)
            tmp56 = tmp55.to(tl.int32, bitcast=True)
            tmp57 = tl.full([], 2139095040, tl.int32)
            tmp58 = (tmp57 - tmp56).to(tl.int32)
            tmp59 = tmp58.to(tl.float32, bitcast=True)
            tmp60 = tl.full([], 0.5, tl.float32)
            tmp61 = tmp59 * tmp60
            tmp62 = tmp13 * tmp61
            tmp63 = tl.reshape(tl.permute(rows_innermost(tl.permute(tl.reshape(tmp62, [8, 2, 2, 4, 32]), (0, 3, 4, 2, 1))), (0, 3, 4, 1, 2)), [32, 4, 32])
            tmp64 = tmp63.to(tl.float8e4nv)
            tl.store(out3_ptr + (32 * i + 2048 * at_jy[:, None] + at_x[None, :]), tl.reshape(tl.permute(tmp64, (1, 2, 0)), [128, 32]), (at_jy[:, None] < 12000))
        else:
            first = i * 32
            for part in tl.range(first, tl.minimum(first + 32, 2048)):
                row_values(in0_ptr, in1_ptr, in2_ptr, in3_ptr, mailbox_ptr, part)
            tl.debug_barrier()
            i = tl.inline_asm_elementwise("{ .reg .b32 mixorder_pass; mov.b32 $0, $1; }", "=r,r", [i.to(tl.int32)], dtype=tl.int32, is_pure=False, pack=1)
            at_x = tl.arange(0, 32)
            tmp0 = tl.reshape(tl.load(in1_ptr + (32 * i + at_x)), [32, 1, 1])
            dealt_x = tl.arange(0, 4)[:, None, None, None] + 4 * tl.arange(0, 8)[None, None, :, None]
            dealt_jy = j_tile * 128 + 32 * tl.arange(0, 4)[None, :, None, None] + tl.arange(0, 32)[None, None, None, :]
            tmp1 = tl.reshape(tl.reshape(tl.permute(tl.load(in2_ptr + (384000 * i + 12000 * dealt_x + dealt_jy), (dealt_jy < 12000), other=0).to(tl.float32), (2, 0, 1, 3)), [32, 128]), [32, 4, 32])
            at_jy = j_tile * 128 + tl.arange(0, 128)
            tmp2 = tl.reshape(tl.load(in3_ptr + (at_jy), (at_jy < 12000), other=0).to(tl.float32), [1, 4, 32])
            tmp3 = tmp1 * tmp2
            tmp4 = tl.reshape(tl.reshape(tl.permute(tl.load(in0_ptr + (384000 * i + 12000 * dealt_x + dealt_jy), (dealt_jy < 12000), other=0).to(tl.float32), (2, 0, 1, 3)), [32, 128]), [32, 4, 32])
            tmp5 = tmp4 * tmp0
            tmp6 = tmp1 * tmp5
            s = i
            tl.store(ws0_ptr + (12000 * s + at_jy), tl.reshape(tl.sum(tmp6, 0)[None, :, :], [128]), (at_jy < 12000))
            tmp7 = tl.load(mailbox_ptr + (32 * i + at_x), volatile=True)
            tmp8 = tl.reshape(tmp7, [32, 1, 1])
            tmp9 = tmp8.to(tl.float32, bitcast=True)
            tmp10 = tmp5 * tmp9
            tmp11 = tmp3 - tmp10
            tmp12 = tmp0 * tmp11
            tmp13 = tl.inline_asm_elementwise("{ .reg .b32 mixorder_rounded_to_bfloat16; .reg .b32 p; cvt.rn.bf16x2.f32 p, $3, $2; shl.b32 $0, p, 16; and.b32 $1, p, 0xffff0000; }", "=f,=f,f,f", [tmp12], dtype=tl.float32, is_pure=True, pack=2)
            tmp14 = tl_math.abs(tmp13)
            tmp15 = tl.reduce(tmp14, 2, maximum_or_nan)[:, :, None]
            tmp16 = tmp15.to(tl.int32, bitcast=True)
            tmp17 = tl.full([], 23, tl.int32)
            tmp18 = (tmp16 >> tmp17).to(tl.int32)
            tmp19 = tl.full([], 255, tl.int32)
            tmp20 = (tmp18 & tmp19).to(tl.int32)
            tmp21 = tl.full([], 135, tl.int32)
            tmp22 = (tmp20 - tmp21).to(tl.int32)
            tmp23 = tl.full([], -127, tl.int32)
            tmp24 = (triton_helpers.maximum(tmp22, tmp23)).to(tl.int32)
            tmp25 = tl.full([], 128, tl.int32)
            tmp26 = (triton_helpers.minimum(tmp24, tmp25)).to(tl.int32)
            tmp27 = tl.full([], 127, tl.int32)
            tmp28 = (tmp26 + tmp27).to(tl.int32)
            tmp29 = tmp28.to(tl.uint8)
            at_j = j_tile * 4 + tl.arange(0, 4)
            tl.store(stage0_ptr + (32 * i + 2048 * at_j[:, None] + at_x[None, :]), tl.permute(tl.reshape(tmp29, [32, 4]), (1, 0)), (at_j[:, None] < 375))
            tmp30 = tmp29.to(tl.int32)
            tmp31 = (tmp30 << tmp17).to(tl.int32)
            tmp32 = tmp31.to(tl.float32, bitcast=True)
            tmp33 = tl.full([], 1.1754943508222875e-38, tl.float32)
            tmp34 = tl.where((tmp32 > tmp33) | (tmp32 != tmp32), tmp32, tmp33)
            tmp35 = tmp34.to(tl.int32, bitcast=True)
            tmp36 = tl.full([], 2139095040, tl.int32)
            tmp37 = (tmp36 - tmp35).to(tl.int32)
            tmp38 = tmp37.to(tl.float32, bitcast=True)
            tmp39 = tl.full([], 0.5, tl.float32)
            tmp40 = tmp38 * tmp39
            tmp41 = tmp13 * tmp40
            tmp42 = tmp41.to(tl.float8e4nv)
            tl.store(out1_ptr + (384000 * i + 12000 * at_x[:, None] + at_jy[None, :]), tl.reshape(tmp42, [32, 128]), (at_jy[None, :] < 12000))
            tmp43 = tl.reduce(tmp14, 0, maximum_or_nan)[None, :, :]
            tmp44 = tmp43.to(tl.int32, bitcast=True)
            tmp45 = (tmp44 >> tmp17).to(tl.int32)
            tmp46 = (tmp45 & tmp19).to(tl.int32)
            tmp47 = (tmp46 - tmp21).to(tl.int32)
            tmp48 = (triton_helpers.maximum(tmp47, tmp23)).to(tl.int32)
            tmp49 = (triton_helpers.minimum(tmp48, tmp25)).to(tl.int32)
            tmp50 = (tmp49 + tmp27).to(tl.int32)
            tmp51 = tmp50.to(tl.uint8)
            tl.store(stage1_ptr + (12000 * i + at_jy), tl.reshape(tmp51, [128]), (at_jy < 12000))
            tmp52 = tmp51.to(tl.int32)
            tmp53 = (tmp52 << tmp17).to(tl.int32)
            tmp54 = tmp53.to(tl.float32, bitcast=True)
            tmp55 = tl.where((tmp54 > tmp33) | (tmp54 != tmp54), tmp54, tmp33)
            tmp56 = tmp55.to(tl.int32, bitcast=True)
            tmp57 = tl.full([], 2139095040, tl.int32)
            tmp58 = (tmp57 - tmp56).to(tl.int32)
            tmp59 = tmp58.to(tl.float32, bitcast=True)
            tmp60 = tl.full([], 0.5, tl.float32)
            tmp61 = tmp59 * tmp60
            tmp62 = tmp13 * tmp61
            tmp63 = tl.reshape(tl.permute(rows_innermost(tl.permute(tl.reshape(tmp62, [8, 2, 2, 4, 32]), (0, 3, 4, 2, 1))), (0, 3, 4, 1, 2)), [32, 4, 32])
            tmp64 = tmp63.to(tl.float8e4nv)
            tl.store(out3_ptr + (32 * i + 2048 * at_jy[:, None] + at_x[None, :]), tl.reshape(tl.permute(tmp64, (1, 2, 0)), [128, 32]), (at_jy[:, None] < 12000))


# 1034 programs of 4 warps
@triton.jit
def sums0(out4_ptr, ws0_ptr, program):
    SBLOCK: tl.constexpr = 64
    YBLOCK: tl.constexpr = 16
    block = program
    s = tl.arange(0, SBLOCK)[:, None]
    y = block * YBLOCK + tl.arange(0, YBLOCK)[None, :]
    tmp0 = tl.load(ws0_ptr + (y + 12000*s), eviction_policy='evict_first')
    tmp1 = tl.sum(tmp0, 0)[None, :]
    tmp2 = tl.inline_asm_elementwise("{ .reg .b32 mixorder_rounded_to_bfloat16; .reg .b32 p; cvt.rn.bf16x2.f32 p, $3, $2; shl.b32 $0, p, 16; and.b32 $1, p, 0xffff0000; }", "=f,=f,f,f", [tmp1], dtype=tl.float32, is_pure=True, pack=2)
    tl.store(out4_ptr + (y), tmp2)


@triton.jit
def copy0(out0_ptr, stage0_ptr, program):
    r_tile = program % 32
    c_tile = program // 32
    at_c = c_tile * 128 + tl.arange(0, 128)
    at_r = r_tile * 64 + tl.arange(0, 64)
    tmp0 = tl.load(stage0_ptr + (2048 * at_c[:, None] + at_r[None, :]), (at_c[:, None] < 375), other=0)
    tl.store(out0_ptr + (375 * at_r[:, None] + at_c[None, :]), tl.permute(tmp0, (1, 0)), (at_c[None, :] < 375))


@triton.jit
def copy1(out2_ptr, stage1_ptr, program):
    r_tile = program
    at_c = tl.arange(0, 64)
    at_r = r_tile * 64 + tl.arange(0, 64)
    tmp0 = tl.load(stage1_ptr + (12000 * at_c[:, None] + at_r[None, :]), (at_r[None, :] < 12000), other=0)
    at_rc = r_tile * 4096 + tl.arange(0, 4096)
    tl.store(out2_ptr + (at_rc), tl.reshape(tl.permute(tmp0, (1, 0)), [4096]), (at_rc < 768000))


@triton.jit
def triton_mixorder_sum_place_3f69ee74(out4_ptr, ws0_ptr, out0_ptr, stage0_ptr, out2_ptr, stage1_ptr):
    program = tl.inline_asm_elementwise("{ .reg .b32 mixorder_pass; griddepcontrol.wait; mov.b32 $0, $1; }", "=r,r", [tl.program_id(0)], dtype=tl.int32, is_pure=True, pack=1)
    if program < 750:
        sums0(out4_ptr, ws0_ptr, program - 0)
    elif program < 846:
        copy0(out0_ptr, stage0_ptr, program - 750)
    elif program < 1034:
        copy1(out2_ptr, stage1_ptr, program - 846)
