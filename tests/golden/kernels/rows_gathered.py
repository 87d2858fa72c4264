"""H200, persistent: the backward of RMSNorm and rotary embedding, 4x2048 tokens of 16 heads of 128."""

# 512 programs of 2 warps
@triton.jit
def triton_mixorder_sum_87f34ec9(in0_ptr, in1_ptr, in2_ptr, in3_ptr, in4_ptr, in5_ptr, out0_ptr, ws0_ptr, XBLOCK: tl.constexpr, NUM_STAGES: tl.constexpr):
    R0_BLOCK: tl.constexpr = 128
    s = tl.program_id(0)
    y = tl.arange(0, R0_BLOCK)[None, :]
    tmp0 = tl.full([], 64, tl.int64)
    tmp1 = tl.full([], 0.0, tl.float32)
    tmp2 = tl.full([], 0.0, tl.float32)
    tmp3 = tl.full([], 0.0078125, tl.float32)
    tmp4 = (y).to(tl.int64)
    tmp5 = tmp4 >= tmp0
    tmp6 = tmp4 < tmp0
    tmp7 = tl.load(tl.broadcast_to(in4_ptr + (y), [XBLOCK, R0_BLOCK])).to(tl.float32)
    ws0_acc = tl.full([XBLOCK, R0_BLOCK], 0.0, tl.float32)
    for tile in tl.range(s, tl.cdiv(131072, XBLOCK), 512, num_stages=NUM_STAGES):
        x = tile * XBLOCK + tl.arange(0, XBLOCK)[:, None]
        tmp8 = tl.load(in5_ptr + (x))
        tmp9 = tl.load(in0_ptr + (y + 128*(((x // 16) % 2048)) + 262144*((x % 16)) + 4194304*(x // 32768))).to(tl.float32)
        tmp10 = tl.load(in2_ptr + (y + 128*(((x // 16) % 2048)))).to(tl.float32)
        tmp11 = tmp9 * tmp10
        tmp12 = tl.load(in0_ptr + ((-64) + y + 128*(((x // 16) % 2048)) + 262144*((x % 16)) + 4194304*(x // 32768)), tmp5, other=0).to(tl.float32)
        tmp13 = tl.load(in1_ptr + ((-64) + y + 128*(((x // 16) % 2048))), tmp5, other=0).to(tl.float32)
        tmp14 = tmp12 * tmp13
        tmp15 = tmp14 * -1.0
        tmp16 = tl.where(tmp5, tmp15, tmp1)
        tmp17 = tl.where(tmp5, tmp16, tmp2)
        tmp18 = tmp11 + tmp17
        tmp19 = tl.load(in0_ptr + (64 + y + 128*(((x // 16) % 2048)) + 262144*((x % 16)) + 4194304*(x // 32768)), tmp6, other=0).to(tl.float32)
        tmp20 = tl.load(in1_ptr + (64 + y + 128*(((x // 16) % 2048))), tmp6, other=0).to(tl.float32)
        tmp21 = tmp19 * tmp20
        tmp22 = tl.where(tmp6, tmp21, tmp1)
        tmp23 = tl.where(tmp6, tmp22, tmp2)
        tmp24 = tmp18 + tmp23
        tmp25 = tmp24 * tmp7
        tmp26 = tl.load(in3_ptr + (y + 128*x), eviction_policy='evict_first').to(tl.float32)
        tmp27 = tmp26 * tmp8
        tmp28 = tmp27 * tmp3
        tmp29 = tmp27 * tmp25
        tmp30 = tmp24 * tmp27
        ws0_acc = ws0_acc + tmp30
        tmp31 = tl.sum(tmp29, 1)[:, None]
        tmp32 = tmp28 * tmp31
        tmp33 = tmp25 - tmp32
        tmp34 = tmp33 * tmp8
        tl.store(out0_ptr + (y + 128*x), tmp34)
    s = tl.inline_asm_elementwise("{ .reg .b32 mixorder_pass; griddepcontrol.launch_dependents; mov.b32 $0, $1; }", "=r,r", [s], dtype=tl.int32, is_pure=True, pack=1)
    tl.store(ws0_ptr + (y + 128*s), tl.sum(ws0_acc, 0)[None, :])


# 8 programs of 8 warps
@triton.jit
def triton_mixorder_sum_final_160f203f(out1_ptr, ws0_ptr):
    SBLOCK: tl.constexpr = 512
    YBLOCK: tl.constexpr = 16
    block = tl.inline_asm_elementwise("{ .reg .b32 mixorder_pass; griddepcontrol.wait; mov.b32 $0, $1; }", "=r,r", [tl.program_id(0)], dtype=tl.int32, is_pure=True, pack=1)
    s = tl.arange(0, SBLOCK)[:, None]
    y = block * YBLOCK + tl.arange(0, YBLOCK)[None, :]
    tmp0 = tl.load(ws0_ptr + (y + 128*s), eviction_policy='evict_first')
    tmp1 = tl.sum(tmp0, 0)[None, :]
    tl.store(out1_ptr + (y), tmp1)
