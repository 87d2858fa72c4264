"""H200, persistent: a pair of sums at each of 640 indices of a batch, 32x16."""

# 640 programs of 2 warps
@triton.jit
def triton_mixorder_sum_28141b81(in0_ptr, in1_ptr, in2_ptr, out0_ptr, out1_ptr, XBLOCK: tl.constexpr, NUM_STAGES: tl.constexpr):
    R0_BLOCK: tl.constexpr = 16
    program = tl.program_id(0)
    k = (program % 640)
    s = program // 640
    y = tl.arange(0, R0_BLOCK)[None, :]
    ws0_acc = tl.full([XBLOCK, R0_BLOCK], 0.0, tl.float32)
    for tile in tl.range(s, tl.cdiv(32, XBLOCK), 1, num_stages=NUM_STAGES):
        x = tile * XBLOCK + tl.arange(0, XBLOCK)[:, None]
        tmp0 = tl.load(in1_ptr + (y + 16*k + 10240*x), eviction_policy='evict_first')
        tmp1 = tl.load(in0_ptr + (y + 16*k + 10240*x), eviction_policy='evict_first')
        tmp2 = tmp1 * tmp0
        ws0_acc = ws0_acc + tmp2
        tmp3 = tl.sum(tmp2, 1)[:, None]
        tmp4 = tmp0 - tmp3
        tl.store(out0_ptr + (y + 16*k + 10240*x), tmp4)
    tmp5 = tl.sum(ws0_acc, 0)[None, :]
    tmp6 = tl.load(in2_ptr + (y + 16*k))
    tmp7 = tmp5 * tmp6
    tl.store(out1_ptr + (y + 16*k), tmp7)
