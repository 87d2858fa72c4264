"""H200, persistent: RMSNorm's backward, 32768x1152 in float32: a row in chunks, sums that are compensated."""

# 264 programs of 4 warps
@triton.jit
def triton_mixorder_sum_4a6e9557(in0_ptr, in1_ptr, in2_ptr, in3_ptr, out0_ptr, ws0_ptr, XBLOCK: tl.constexpr, NUM_STAGES: tl.constexpr):
    R0_BLOCK: tl.constexpr = 512
    s = tl.program_id(0)
    y_0 = tl.arange(0, R0_BLOCK)[None, :]
    y_1 = 512 + tl.arange(0, R0_BLOCK)[None, :]
    y_2 = 1024 + tl.arange(0, R0_BLOCK)[None, :]
    ymask_2 = y_2 < 1152
    tmp0 = tl.full([], 0.0008680555555555555, tl.float32)
    tmp1 = tl.load(tl.broadcast_to(in1_ptr + (y_0), [XBLOCK, R0_BLOCK]))
    tmp2 = tl.load(tl.broadcast_to(in1_ptr + (y_1), [XBLOCK, R0_BLOCK]))
    tmp3 = tl.load(tl.broadcast_to(in1_ptr + (y_2), [XBLOCK, R0_BLOCK]), ymask_2, other=0)
    ws0_acc_0 = tl.full([XBLOCK, R0_BLOCK], 0.0, tl.float32)
    ws0_error_0 = tl.full([XBLOCK, R0_BLOCK], 0.0, tl.float32)
    ws0_acc_1 = tl.full([XBLOCK, R0_BLOCK], 0.0, tl.float32)
    ws0_error_1 = tl.full([XBLOCK, R0_BLOCK], 0.0, tl.float32)
    ws0_acc_2 = tl.full([XBLOCK, R0_BLOCK], 0.0, tl.float32)
    ws0_error_2 = tl.full([XBLOCK, R0_BLOCK], 0.0, tl.float32)
    for tile in tl.range(s, tl.cdiv(32768, XBLOCK), 264, num_stages=NUM_STAGES):
        x = tile * XBLOCK + tl.arange(0, XBLOCK)[:, None]
        tmp4 = tl.load(in3_ptr + (x))
        tmp5 = tl.load(in0_ptr + (y_0 + 1152*x), eviction_policy='evict_first')
        tmp6 = tl.load(in0_ptr + (y_1 + 1152*x), eviction_policy='evict_first')
        tmp7 = tl.load(in0_ptr + (y_2 + 1152*x), ymask_2, other=0, eviction_policy='evict_first')
        tmp8 = tmp5 * tmp1
        tmp9 = tmp6 * tmp2
        tmp10 = tmp7 * tmp3
        tmp11 = tl.load(in2_ptr + (y_0 + 1152*x), eviction_policy='evict_first')
        tmp12 = tl.load(in2_ptr + (y_1 + 1152*x), eviction_policy='evict_first')
        tmp13 = tl.load(in2_ptr + (y_2 + 1152*x), ymask_2, other=0, eviction_policy='evict_first')
        tmp14 = tmp11 * tmp4
        tmp15 = tmp12 * tmp4
        tmp16 = tmp13 * tmp4
        tmp17 = tmp14 * tmp0
        tmp18 = tmp15 * tmp0
        tmp19 = tmp16 * tmp0
        tmp20 = tmp14 * tmp8
        tmp21 = tmp15 * tmp9
        tmp22 = tmp16 * tmp10
        tmp23 = tmp5 * tmp14
        tmp24 = tmp6 * tmp15
        tmp25 = tmp7 * tmp16
        tmp26 = tmp23 - ws0_error_0
        tmp27 = ws0_acc_0 + tmp26
        ws0_error_0 = tl.where(tl.abs(tmp27) < float('inf'), (tmp27 - ws0_acc_0) - tmp26, 0.0)
        ws0_acc_0 = tmp27
        tmp28 = tmp24 - ws0_error_1
        tmp29 = ws0_acc_1 + tmp28
        ws0_error_1 = tl.where(tl.abs(tmp29) < float('inf'), (tmp29 - ws0_acc_1) - tmp28, 0.0)
        ws0_acc_1 = tmp29
        tmp30 = tmp25 - ws0_error_2
        tmp31 = ws0_acc_2 + tmp30
        ws0_error_2 = tl.where(tl.abs(tmp31) < float('inf'), (tmp31 - ws0_acc_2) - tmp30, 0.0)
        ws0_acc_2 = tmp31
        tmp32 = tmp20 + tmp21
        tmp33 = tmp32 + tl.where(ymask_2, tmp22, 0.0)
        tmp34 = tl.sum(tmp33, 1)[:, None]
        tmp35 = tmp17 * tmp34
        tmp36 = tmp18 * tmp34
        tmp37 = tmp19 * tmp34
        tmp38 = tmp35 * -1.0
        tmp39 = tmp36 * -1.0
        tmp40 = tmp37 * -1.0
        tmp41 = tl.fma(tmp5, tmp1, tmp38)
        tmp42 = tl.fma(tmp6, tmp2, tmp39)
        tmp43 = tl.fma(tmp7, tmp3, tmp40)
        tmp44 = tmp41 * tmp4
        tmp45 = tmp42 * tmp4
        tmp46 = tmp43 * tmp4
        tl.store(out0_ptr + (y_0 + 1152*x), tmp44)
        tl.store(out0_ptr + (y_1 + 1152*x), tmp45)
        tl.store(out0_ptr + (y_2 + 1152*x), tmp46, ymask_2)
    s = tl.inline_asm_elementwise("{ .reg .b32 mixorder_pass; griddepcontrol.launch_dependents; mov.b32 $0, $1; }", "=r,r", [s], dtype=tl.int32, is_pure=True, pack=1)
    tl.store(ws0_ptr + (y_0 + 1152*s), tl.sum(ws0_acc_0 - ws0_error_0, 0)[None, :])
    tl.store(ws0_ptr + (y_1 + 1152*s), tl.sum(ws0_acc_1 - ws0_error_1, 0)[None, :])
    tl.store(ws0_ptr + (y_2 + 1152*s), tl.sum(ws0_acc_2 - ws0_error_2, 0)[None, :], ymask_2)


# 72 programs of 8 warps
@triton.jit
def triton_mixorder_sum_final_32ae23d1(out1_ptr, ws0_ptr):
    SBLOCK: tl.constexpr = 512
    YBLOCK: tl.constexpr = 16
    block = tl.inline_asm_elementwise("{ .reg .b32 mixorder_pass; griddepcontrol.wait; mov.b32 $0, $1; }", "=r,r", [tl.program_id(0)], dtype=tl.int32, is_pure=True, pack=1)
    s = tl.arange(0, SBLOCK)[:, None]
    smask = s < 264
    y = block * YBLOCK + tl.arange(0, YBLOCK)[None, :]
    tmp0 = tl.load(ws0_ptr + (y + 1152*s), smask, other=0, eviction_policy='evict_first').to(tl.float64)
    tmp1 = tl.sum(tl.where(smask, tmp0, 0.0), 0)[None, :]
    tmp2 = tmp1.to(tl.float32)
    tl.store(out1_ptr + (y), tmp2)
