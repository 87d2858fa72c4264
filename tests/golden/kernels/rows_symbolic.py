"""MI300, persistent: a pair of sums of 1024 columns of float32: symbolic rows, and no PTX."""

# 304 programs of 4 warps
@triton.jit
def triton_mixorder_sum_032d070c(in0_ptr, in1_ptr, out0_ptr, ws0_ptr, s27, XBLOCK: tl.constexpr, NUM_STAGES: tl.constexpr):
    R0_BLOCK: tl.constexpr = 1024
    rows = s27
    s = tl.program_id(0)
    y = tl.arange(0, R0_BLOCK)[None, :]
    ws0_acc = tl.full([1, R0_BLOCK], 0.0, tl.float32)
    ws0_error = tl.full([1, R0_BLOCK], 0.0, tl.float32)
    for tile in tl.range(s, tl.cdiv(rows, XBLOCK), 304, num_stages=NUM_STAGES):
        x = tile * tl.full([], XBLOCK, tl.int64) + tl.arange(0, XBLOCK)[:, None]
        xmask = x < rows
        tmp0 = tl.load(in1_ptr + (y + 1024*x), xmask, other=0, eviction_policy='evict_first')
        tmp1 = tl.load(in0_ptr + (y + 1024*x), xmask, other=0, eviction_policy='evict_first')
        tmp2 = tmp1 * tmp0
        tmp3 = tl.sum(tl.where(xmask, tmp2, 0.0), 0)[None, :] - ws0_error
        tmp4 = ws0_acc + tmp3
        ws0_error = tl.where(tl.abs(tmp4) < float('inf'), (tmp4 - ws0_acc) - tmp3, 0.0)
        ws0_acc = tmp4
        tmp5 = tl.sum(tmp2, 1)[:, None]
        tmp6 = tmp1 * tmp5
        tmp7 = tmp0 - tmp6
        tl.store(out0_ptr + (y + 1024*x), tmp7, xmask)
    tl.store(ws0_ptr + (y + 1024*s), tl.sum(ws0_acc - ws0_error, 0)[None, :])


# 64 programs of 4 warps
@triton.jit
def triton_mixorder_sum_final_c61992d0(out1_ptr, ws0_ptr):
    SBLOCK: tl.constexpr = 512
    YBLOCK: tl.constexpr = 16
    block = tl.program_id(0)
    s = tl.arange(0, SBLOCK)[:, None]
    smask = s < 304
    y = block * YBLOCK + tl.arange(0, YBLOCK)[None, :]
    tmp0 = tl.load(ws0_ptr + (y + 1024*s), smask, other=0, eviction_policy='evict_first').to(tl.float64)
    tmp1 = tl.sum(tl.where(smask, tmp0, 0.0), 0)[None, :]
    tmp2 = tmp1.to(tl.float32)
    tl.store(out1_ptr + (y), tmp2)
