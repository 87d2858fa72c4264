"""H200, two-pass: GroupNorm's backward, 8 samples of 4096 places and 320 channels in bf16: three kernels."""

# 528 programs of 4 warps
@triton.jit
def triton_mixorder_sum_sums_bc07e9af(in0_ptr, in1_ptr, in2_ptr, in3_ptr, ws0_ptr, ws1_ptr):
    program = tl.program_id(0)
    p_tile = program % 3
    s = program // 3 % 22
    y = program // 66
    p = p_tile * 128 + tl.arange(0, 128)[None, :]
    tmp0 = tl.load(in1_ptr + (32*y + (p // 10)), (p < 320), other=0)
    tmp1 = tl.load(in2_ptr + (32*y + (p // 10)), (p < 320), other=0)
    tmp2 = tl.full([8, 128], 0.0, tl.float32)
    tmp3 = tl.full([8, 128], 0.0, tl.float32)
    for step in tl.range(s, 128, 22, num_stages=3):
        x_tile = step
        at_x = x_tile * 32 + tl.arange(0, 32)
        at_p = p_tile * 128 + tl.arange(0, 128)
        tmp4 = tl.load(in3_ptr + (1310720 * y + 320 * at_x[:, None] + at_p[None, :]), (at_p[None, :] < 320), other=0).to(tl.float32)
        tmp5 = tl.load(in0_ptr + (1310720 * y + 320 * at_x[:, None] + at_p[None, :]), (at_p[None, :] < 320), other=0).to(tl.float32)
        tmp6 = tmp5 - tmp0
        tmp7 = tmp6 * tmp1
        tmp8 = tmp4 * tmp7
        tmp2 = tmp2 + tl.sum(tl.reshape(tmp8, [4, 8, 128]), 0)
        tmp3 = tmp3 + tl.sum(tl.reshape(tmp4, [4, 8, 128]), 0)
    at_p = p_tile * 128 + tl.arange(0, 128)
    tl.store(ws0_ptr + (2560 * s + 320 * y + at_p), tl.reshape(tl.sum(tmp2, 0)[None, :], [128]), (at_p < 320))
    tl.store(ws1_ptr + (2560 * s + 320 * y + at_p), tl.reshape(tl.sum(tmp3, 0)[None, :], [128]), (at_p < 320))


# 32 programs of 4 warps
@triton.jit
def triton_mixorder_sum_results_f0a8314e(in4_ptr, out1_ptr, out2_ptr, ws0_ptr, ws1_ptr, ws2_ptr, ws3_ptr):
    program = tl.program_id(0)
    z = program
    at_sy = tl.arange(0, 256)
    at_p = tl.arange(0, 16)
    tmp0 = tl.reshape(tl.load(ws0_ptr + (10 * z + 320 * at_sy[:, None] + at_p[None, :]), (at_sy[:, None] < 176) & (at_p[None, :] < 10), other=0), [32, 8, 16])
    s = tl.arange(0, 32)[:, None, None]
    tmp1 = tl.sum(tl.where(s < 22, tmp0, 0.0), 0)[None, :, :]
    tmp2 = tl.reshape(tl.load(ws1_ptr + (10 * z + 320 * at_sy[:, None] + at_p[None, :]), (at_sy[:, None] < 176) & (at_p[None, :] < 10), other=0), [32, 8, 16])
    tmp3 = tl.sum(tl.where(s < 22, tmp2, 0.0), 0)[None, :, :]
    tmp4 = tl.reshape(tl.load(in4_ptr + (10 * z + at_p), (at_p < 10), other=0), [1, 1, 16])
    tmp5 = tmp1 * tmp4
    p = tl.arange(0, 16)[None, None, :]
    tmp6 = tl.sum(tl.where(p < 10, tmp5, 0.0), 2)[:, :, None]
    tmp7 = tl.full([], 2.44140625e-05, tl.float32)
    tmp8 = tmp6 * tmp7
    tmp9 = tmp3 * tmp4
    tmp10 = tl.sum(tl.where(p < 10, tmp9, 0.0), 2)[:, :, None]
    tmp11 = tmp10 * tmp7
    tmp12 = tl.sum(tmp1, 1)[:, None, :]
    tmp13 = tl.sum(tmp3, 1)[:, None, :]
    tl.store(out1_ptr + (10 * z + at_p), tl.reshape(tmp12, [16]), (at_p < 10))
    tl.store(out2_ptr + (10 * z + at_p), tl.reshape(tmp13, [16]), (at_p < 10))
    at_y = tl.arange(0, 8)
    tl.store(ws2_ptr + (10 * z + 320 * at_y[:, None] + at_p[None, :]), tl.reshape(tl.broadcast_to(tmp8, [1, 8, 16]), [8, 16]), (at_p[None, :] < 10))
    tl.store(ws3_ptr + (10 * z + 320 * at_y[:, None] + at_p[None, :]), tl.reshape(tl.broadcast_to(tmp11, [1, 8, 16]), [8, 16]), (at_p[None, :] < 10))


# 3072 programs of 4 warps
@triton.jit
def triton_mixorder_sum_apply_a0324df5(in0_ptr, in1_ptr, in2_ptr, in3_ptr, in4_ptr, out0_ptr, ws2_ptr, ws3_ptr):
    program = (3071 - tl.program_id(0))
    p_tile = program % 3
    y = program // 3 % 8
    x_tile = program // 24
    at_p = p_tile * 128 + tl.arange(0, 128)
    tmp0 = tl.reshape(tl.load(ws2_ptr + (320 * y + at_p), (at_p < 320), other=0), [1, 128])
    tmp1 = tl.reshape(tl.load(ws3_ptr + (320 * y + at_p), (at_p < 320), other=0), [1, 128])
    at_x = x_tile * 32 + tl.arange(0, 32)
    tmp2 = tl.load(in3_ptr + (1310720 * y + 320 * at_x[:, None] + at_p[None, :]), (at_p[None, :] < 320), other=0).to(tl.float32)
    tmp3 = tl.reshape(tl.load(in4_ptr + (at_p), (at_p < 320), other=0), [1, 128])
    tmp4 = tmp2 * tmp3
    tmp5 = tl.load(in0_ptr + (1310720 * y + 320 * at_x[:, None] + at_p[None, :]), (at_p[None, :] < 320), other=0).to(tl.float32)
    p = p_tile * 128 + tl.arange(0, 128)[None, :]
    tmp6 = tl.load(in1_ptr + (32*y + (p // 10)), (p < 320), other=0)
    tmp7 = tmp5 - tmp6
    tmp8 = tl.load(in2_ptr + (32*y + (p // 10)), (p < 320), other=0)
    tmp9 = tmp7 * tmp8
    tmp10 = tmp9 * tmp0
    tmp11 = tmp4 - tmp10
    tmp12 = tmp11 - tmp1
    tmp13 = tmp12 * tmp8
    tl.store(out0_ptr + (1310720 * y + 320 * at_x[:, None] + at_p[None, :]), tmp13, (at_p[None, :] < 320))
