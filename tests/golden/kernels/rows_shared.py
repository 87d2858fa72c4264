"""H200, cooperative, 10 programs to 2 rows: RMSNorm's backward, 4096x20000 in bf16: parts that are no power of two."""

# 260 programs of 4 warps
@triton.jit
def triton_mixorder_sum_ad3816bb(in0_ptr, in1_ptr, in2_ptr, in3_ptr, out0_ptr, ws0_ptr, mailbox_ptr, XBLOCK: tl.constexpr, NUM_STAGES: tl.constexpr):
    R0_BLOCK: tl.constexpr = 2048
    own = tl.program_id(0) % 10
    s = tl.program_id(0) // 10
    begin, tiles = s, tl.cdiv(4096, XBLOCK)
    turn = tl.full([], 0, tl.int32)
    turns = tl.full([], 1, tl.int32)
    while turn < turns:
        mine = (turn == 0) | (turn == 10)
        part = tl.where(mine, own, (own + turn) % 10)
        y = part * 2000 + tl.arange(0, R0_BLOCK)[None, :]
        ymask = (y < 20000) & (tl.arange(0, R0_BLOCK)[None, :] < 2000)
        tmp0 = tl.full([], 5e-05, tl.float32)
        tmp1 = tl.load(in2_ptr + (y), ymask, other=0).to(tl.float32)
        ws0_acc = tl.full([1, R0_BLOCK], 0.0, tl.float32)
        held0_1 = tl.zeros([XBLOCK, R0_BLOCK], tl.bfloat16)
        held0_2 = tl.zeros([XBLOCK, R0_BLOCK], tl.bfloat16)
        held0_3 = tl.zeros([XBLOCK, R0_BLOCK], tl.bfloat16)
        held1_1 = tl.zeros([XBLOCK, R0_BLOCK], tl.bfloat16)
        held1_2 = tl.zeros([XBLOCK, R0_BLOCK], tl.bfloat16)
        held1_3 = tl.zeros([XBLOCK, R0_BLOCK], tl.bfloat16)
        held2_1 = tl.zeros([XBLOCK, 1], tl.float32)
        held2_2 = tl.zeros([XBLOCK, 1], tl.float32)
        held2_3 = tl.zeros([XBLOCK, 1], tl.float32)
        missed1 = tl.full([], 0, tl.int32)
        seen1_0_0 = tl.inline_asm_elementwise("{ .reg .b32 mixorder_peek_sum_1_10; { .reg .pred q; .reg .b32 l, k; .reg .b64 a; mov.u32 l, %laneid; and.b32 k, l, 15; setp.lt.u32 q, k, 10; setp.lt.and.u32 q, l, 16, q; mad.wide.u32 a, l, 4, $1; mov.b32 $0, 0x00000000; @q ld.relaxed.gpu.global.b32 $0, [a]; } }", "=r,l", [(mailbox_ptr + ((tl.maximum(tl.minimum(begin, tiles - 1), 0) * XBLOCK + 0) * 1 + 0) * 16).to(tl.int64)], dtype=tl.int32, is_pure=True, pack=1)
        seen1_0_1 = tl.inline_asm_elementwise("{ .reg .b32 mixorder_peek_sum_1_10; { .reg .pred q; .reg .b32 l, k; .reg .b64 a; mov.u32 l, %laneid; and.b32 k, l, 15; setp.lt.u32 q, k, 10; setp.lt.and.u32 q, l, 16, q; mad.wide.u32 a, l, 4, $1; mov.b32 $0, 0x00000000; @q ld.relaxed.gpu.global.b32 $0, [a]; } }", "=r,l", [(mailbox_ptr + ((tl.maximum(tl.minimum(begin, tiles - 1), 0) * XBLOCK + 1) * 1 + 0) * 16).to(tl.int64)], dtype=tl.int32, is_pure=True, pack=1)
        for tile in tl.range(begin, tiles + 78, 26, num_stages=NUM_STAGES):
            x = (tile) * XBLOCK + tl.arange(0, XBLOCK)[:, None]
            xmask = (x < 4096)
            held1_raw = tl.load(in1_ptr + (y + 20000*x), xmask & ymask, other=0, eviction_policy='evict_first')
            tmp2 = held1_raw.to(tl.float32)
            tmp3 = tl.load(in3_ptr + (x), xmask, other=0)
            held0_raw = tl.load(in0_ptr + (y + 20000*x), xmask & ymask, other=0, eviction_policy='evict_first')
            tmp4 = held0_raw.to(tl.float32)
            tmp5 = tmp2 * tmp3
            tmp6 = tmp4 * tmp1
            tmp7 = tmp5 * tmp6
            tmp8 = tl.sum(tl.where(ymask, tmp7, 0.0), 1)[:, None]
            tl.store(mailbox_ptr + ((x * 1 + 0) * 16 + part), tl.where(tmp8 == tmp8, tmp8, float('nan')).to(tl.int32, bitcast=True), (x < tiles * 2))
            ready1 = (tile - 78 >= 0) & (tile - 78 < tiles)
            polls = tl.where(mine & ready1 & (missed1 == 0), 16384, 0)
            total1_0_0 = tl.inline_asm_elementwise("{ .reg .b32 mixorder_total_sum_1_10; { .reg .pred p, m; .reg .b32 n, v, w;  .reg .pred q; .reg .b32 l, k; .reg .b64 a; mov.u32 l, %laneid; and.b32 k, l, 15; setp.lt.u32 q, k, 10; setp.lt.and.u32 q, l, 16, q; mad.wide.u32 a, l, 4, $2; mov.b32 v, $3; mov.b32 n, $4; again: setp.eq.s32 p, v, -1; vote.sync.any.pred m, p, -1; selp.b32 $0, 0, 1, m; setp.ne.and.u32 m, n, 0, m; @!m bra done; @q ld.relaxed.gpu.global.b32 v, [a]; sub.u32 n, n, 1; bra again; done: shfl.sync.bfly.b32 w, v, 8, 31, -1; add.f32 v, v, w; shfl.sync.bfly.b32 w, v, 4, 31, -1; add.f32 v, v, w; shfl.sync.bfly.b32 w, v, 2, 31, -1; add.f32 v, v, w; shfl.sync.bfly.b32 w, v, 1, 31, -1; add.f32 v, v, w; shfl.sync.idx.b32 $1, v, 0, 31, -1; } }", "=&r,=&f,l,r,r", [(mailbox_ptr + ((tl.maximum(tl.minimum(tile - 78, tiles - 1), 0) * XBLOCK + 0) * 1 + 0) * 16).to(tl.int64), seen1_0_0, polls], dtype=(tl.int32, tl.float32), is_pure=True, pack=1)
            missed1 = missed1 | (ready1 & (total1_0_0[0] == 0)).to(tl.int32)
            total1_0_1 = tl.inline_asm_elementwise("{ .reg .b32 mixorder_total_sum_1_10; { .reg .pred p, m; .reg .b32 n, v, w;  .reg .pred q; .reg .b32 l, k; .reg .b64 a; mov.u32 l, %laneid; and.b32 k, l, 15; setp.lt.u32 q, k, 10; setp.lt.and.u32 q, l, 16, q; mad.wide.u32 a, l, 4, $2; mov.b32 v, $3; mov.b32 n, $4; again: setp.eq.s32 p, v, -1; vote.sync.any.pred m, p, -1; selp.b32 $0, 0, 1, m; setp.ne.and.u32 m, n, 0, m; @!m bra done; @q ld.relaxed.gpu.global.b32 v, [a]; sub.u32 n, n, 1; bra again; done: shfl.sync.bfly.b32 w, v, 8, 31, -1; add.f32 v, v, w; shfl.sync.bfly.b32 w, v, 4, 31, -1; add.f32 v, v, w; shfl.sync.bfly.b32 w, v, 2, 31, -1; add.f32 v, v, w; shfl.sync.bfly.b32 w, v, 1, 31, -1; add.f32 v, v, w; shfl.sync.idx.b32 $1, v, 0, 31, -1; } }", "=&r,=&f,l,r,r", [(mailbox_ptr + ((tl.maximum(tl.minimum(tile - 78, tiles - 1), 0) * XBLOCK + 1) * 1 + 0) * 16).to(tl.int64), seen1_0_1, polls], dtype=(tl.int32, tl.float32), is_pure=True, pack=1)
            missed1 = missed1 | (ready1 & (total1_0_1[0] == 0)).to(tl.int32)
            tmp9 = tl.where(tl.arange(0, XBLOCK)[:, None] == 0, total1_0_0[1], total1_0_1[1])
            seen1_0_0 = tl.inline_asm_elementwise("{ .reg .b32 mixorder_peek_sum_1_10; { .reg .pred q; .reg .b32 l, k; .reg .b64 a; mov.u32 l, %laneid; and.b32 k, l, 15; setp.lt.u32 q, k, 10; setp.lt.and.u32 q, l, 16, q; mad.wide.u32 a, l, 4, $1; mov.b32 $0, 0x00000000; @q ld.relaxed.gpu.global.b32 $0, [a]; } }", "=r,l", [(mailbox_ptr + ((tl.maximum(tl.minimum(tile - 52, tiles - 1), 0) * XBLOCK + 0) * 1 + 0) * 16).to(tl.int64)], dtype=tl.int32, is_pure=True, pack=1)
            seen1_0_1 = tl.inline_asm_elementwise("{ .reg .b32 mixorder_peek_sum_1_10; { .reg .pred q; .reg .b32 l, k; .reg .b64 a; mov.u32 l, %laneid; and.b32 k, l, 15; setp.lt.u32 q, k, 10; setp.lt.and.u32 q, l, 16, q; mad.wide.u32 a, l, 4, $1; mov.b32 $0, 0x00000000; @q ld.relaxed.gpu.global.b32 $0, [a]; } }", "=r,l", [(mailbox_ptr + ((tl.maximum(tl.minimum(tile - 52, tiles - 1), 0) * XBLOCK + 1) * 1 + 0) * 16).to(tl.int64)], dtype=tl.int32, is_pure=True, pack=1)
            x = (tile - 78) * XBLOCK + tl.arange(0, XBLOCK)[:, None]
            xmask = (x >= 0) & (x < 4096)
            tmp10 = held0_3.to(tl.float32)
            tmp11 = held1_3.to(tl.float32)
            tmp12 = held2_3
            tmp13 = tmp11 * tmp12
            tmp14 = tmp10 * tmp13
            ws0_acc = ws0_acc + tl.sum(tmp14, 0)[None, :]
            tmp15 = tmp10 * tmp1
            tmp16 = tmp13 * tmp0
            tmp17 = tmp16 * tmp9
            tmp18 = tmp15 - tmp17
            tmp19 = tmp18 * tmp12
            tl.store(out0_ptr + (y + 20000*x), tmp19, xmask & ymask & mine)
            held0_3 = tl.inline_asm_elementwise("{ .reg .b32 mixorder_carry; mov.b32 $0, $1; }", "=r,r", [held0_2], dtype=tl.bfloat16, is_pure=True, pack=2)
            held0_2 = tl.inline_asm_elementwise("{ .reg .b32 mixorder_carry; mov.b32 $0, $1; }", "=r,r", [held0_1], dtype=tl.bfloat16, is_pure=True, pack=2)
            held0_1 = held0_raw
            held1_3 = tl.inline_asm_elementwise("{ .reg .b32 mixorder_carry; mov.b32 $0, $1; }", "=r,r", [held1_2], dtype=tl.bfloat16, is_pure=True, pack=2)
            held1_2 = tl.inline_asm_elementwise("{ .reg .b32 mixorder_carry; mov.b32 $0, $1; }", "=r,r", [held1_1], dtype=tl.bfloat16, is_pure=True, pack=2)
            held1_1 = held1_raw
            held2_3 = tl.inline_asm_elementwise("{ .reg .b32 mixorder_carry; mov.b32 $0, $1; }", "=r,r", [held2_2], dtype=tl.float32, is_pure=True, pack=1)
            held2_2 = tl.inline_asm_elementwise("{ .reg .b32 mixorder_carry; mov.b32 $0, $1; }", "=r,r", [held2_1], dtype=tl.float32, is_pure=True, pack=1)
            held2_1 = tmp3
        s = tl.inline_asm_elementwise("{ .reg .b32 mixorder_pass; griddepcontrol.launch_dependents; mov.b32 $0, $1; }", "=r,r", [s], dtype=tl.int32, is_pure=True, pack=1)
        tl.store(ws0_ptr + (y + 20000*s), ws0_acc, ymask & mine)
        turns = tl.where((turn == 0) & (tl.max(missed1 + tl.zeros([R0_BLOCK], tl.int32), 0) > 0), 11, turns)
        turn += 1


# 1250 programs of 4 warps
@triton.jit
def triton_mixorder_sum_final_b529ac44(out1_ptr, ws0_ptr):
    SBLOCK: tl.constexpr = 32
    YBLOCK: tl.constexpr = 16
    block = tl.inline_asm_elementwise("{ .reg .b32 mixorder_pass; griddepcontrol.wait; mov.b32 $0, $1; }", "=r,r", [tl.program_id(0)], dtype=tl.int32, is_pure=True, pack=1)
    s = tl.arange(0, SBLOCK)[:, None]
    smask = s < 26
    y = block * YBLOCK + tl.arange(0, YBLOCK)[None, :]
    tmp0 = tl.load(ws0_ptr + (y + 20000*s), smask, other=0, eviction_policy='evict_first')
    tmp1 = tl.sum(tl.where(smask, tmp0, 0.0), 0)[None, :]
    tl.store(out1_ptr + (y), tmp1)
