"""The operators of random programs, as data: what each takes, what it gives, and its text.

A value is of a space and of a class, as in "row.i". The spaces: all axes ("full"), all but the inner
reduction's ("row"), all but the outer reduction's ("col"). The classes: numbers that may be off by a rounding
(no suffix), and those that must be right to the last bit, since they are made of inputs without any rounding:
integers ("i"), truth values ("b"), whole numbers in float32 ("z"), 8-bit floats ("q"). Three are only given
back: float64 made of inputs ("d"), what was rounded to few bits ("a"), which may be off by one place, and
matrices of each element of a value with each of another ("p").
"input" is x or y as it was given.
"""

from __future__ import annotations

import dataclasses
from typing import Any

FULL, ROW, COL, INPUT, WRITE = "full", "row", "col", "input", "write"
SPACES = (FULL, ROW, COL)
KINDS = {"x": FULL, "y": FULL, "r": ROW, "w": COL}
MORE_KINDS = {
    **{"xi": "full.i", "ri": "row.i", "wi": "col.i"},
    **{"xb": "full.b", "rb": "row.b", "wb": "col.b", "xq": "full.q"},
}
DEFAULTS = {
    **{FULL: "x", INPUT: "x", ROW: "r", COL: "w"},
    **{kind: name for name, kind in MORE_KINDS.items()},
    **{f"{kind}.z": f"({name} % 16).float()" for kind, name in zip(SPACES, ("xi", "ri", "wi"), strict=True)},
}


@dataclasses.dataclass(frozen=True)
class Op:
    """`text` is an expression of the arguments {0}, {1}, ..; of the dims {inner}, {outer}, and the sizes
    {rows}, {cols} that they reduce; of {k}, a small number, {dim}, an axis, {last}, the size of the last one,
    and {wide}, the dtype of sums.

    `finite`: not of NaN or infinities, and not of nothing; `nonempty`: not of nothing. `kept`: it does
    something, whether or not its result is used.
    """

    result: str
    args: tuple[str, ...]
    text: str
    forward_only: bool = False
    one_inner: bool = False
    one_outer: bool = False
    most_cols: int = 1 << 30
    finite: bool = False
    nonempty: bool = False
    kept: bool = False


def op(result: str, args: str, text: str, **limits: Any) -> Op:
    return Op(result, tuple(args.split()), text, **limits)


def space_of(kind: str) -> str:
    return FULL if kind == INPUT else kind.partition(".")[0]


FLOATS: dict[str, Op] = {
    "mul": op(FULL, "full full", "torch.tanh({0} * {1})"),
    "add": op(FULL, "full full", "({0} + {1}) * 0.5"),
    "sub": op(FULL, "full full", "{0} - {1} * 0.5"),
    "mul_row": op(FULL, "full row", "{0} * {1}"),
    "sub_row": op(FULL, "full row", "{0} - {1}"),
    "sub_mul_row": op(FULL, "full full row", "{0} - {1} * {2}"),
    "mul_col": op(FULL, "full col", "{0} * {1}"),
    "add_col": op(FULL, "full col", "{0} + {1} * 0.5"),
    "over_rms": op(FULL, "full row", "{0} * torch.rsqrt({1} * {1} + 0.5)"),
    "sin": op(FULL, "full", "torch.sin({0})"),
    "gauss": op(FULL, "full", "torch.exp(-{0} * {0})"),
    "gelu": op(FULL, "full", "F.gelu({0})"),
    "gate": op(FULL, "full full", "{0} * torch.sigmoid({1})"),
    "where": op(FULL, "input full full", "torch.where({0} > 0.25, {1}, {2} * 0.5)"),
    "relu": op(FULL, "input", "torch.relu({0})"),
    "widen": op(FULL, "full", "{0}.to(torch.promote_types({0}.dtype, torch.float32))"),
    "narrow": op(FULL, "full", "{0}.to(x.dtype)"),
    "layer_norm": op(FULL, "full", "F.layer_norm({0}, {0}.shape[-1:])", one_inner=True),
    "softmax": op(FULL, "full", "torch.softmax({0}, -1) * {cols} ** 0.5", one_inner=True),
    "matmul": op(FULL, "full", "{0}.to(m.dtype) @ m", most_cols=600),
    "cumsum": op(FULL, "full", "{0}.cumsum(-1) / {cols}"),
    "merged_dims": op(
        FULL, "full full", "torch.sin({0}.reshape(-1, {0}.shape[-1])).reshape({0}.shape) + {1}", nonempty=True
    ),
    "permuted": op(
        FULL,
        "full full",
        "torch.sin({0}.transpose(0, {dim}).contiguous()).transpose(0, {dim}) * 0.5 + {1}",
    ),
    "view_permuted": op(FULL, "full full", "torch.cos({0}.transpose(0, {dim})).transpose(0, {dim}) - {1}"),
    "flipped": op(FULL, "full full", "torch.sin({0}).flip({dim}) + {1}"),
    "rotated": op(FULL, "full full", "torch.cat([-{0}[..., {k} % {last} :], {1}[..., : {k} % {last}]], -1)"),
    "rotated_rows": op(FULL, "full full", "torch.cat([{0}[1:] * 0.5, torch.tanh({1}[:1])])"),
    "padded": op(FULL, "full full", "F.pad(torch.tanh({0}[..., {k} % {last} :]), ({k} % {last}, 0)) + {1}"),
    "scattered": op(
        FULL,
        "full full",
        "torch.slice_scatter({1} * 0.5, torch.sin({0}[..., {k} % {last} :]).to({1}.dtype), -1, {k} % {last})",
    ),
    "selected": op(
        FULL, "full full", "torch.select_scatter({1} * 0.5, {0}[0].to({1}.dtype), 0, 0)", nonempty=True
    ),
    "row_sum": op(ROW, "full full", "({0} * {1}).sum({inner}, keepdim=True) / {cols}"),
    "row_sum_flat": op(ROW, "full full", "(({0} - {1}).sum({inner}) / {cols}).reshape(r.shape)"),
    "row_mean": op(ROW, "full", "{0}.mean({inner}, keepdim=True)"),
    "row_var": op(ROW, "full", "{0}.var({inner}, correction=0, keepdim=True)"),
    "row_rms": op(ROW, "full", "torch.sqrt({0}.square().mean({inner}, keepdim=True) + 0.1)"),
    "row_max": op(ROW, "full", "{0}.amax({inner}, keepdim=True).tanh()", forward_only=True, nonempty=True),
    "row_min": op(ROW, "full", "{0}.amin({inner}, keepdim=True).tanh()", forward_only=True, nonempty=True),
    "row_max_of_input": op(ROW, "input", "{0}.amax({inner}, keepdim=True) * 0.5", nonempty=True),
    "row_any": op(ROW, "input", "({0} > 2).any({inner}[0], keepdim=True).to(x.dtype)", one_inner=True),
    "row_prod": op(ROW, "full", "(1 + {0}.tanh() / {cols}).prod(-1, keepdim=True)", one_inner=True),
    "row_logsumexp": op(ROW, "full", "torch.logsumexp({0}, {inner}, keepdim=True) * 0.25", nonempty=True),
    "row_scale": op(ROW, "row", "{0} * 0.5 + 1"),
    "row_less_mean": op(ROW, "row", "{0} - {0}.mean({dim}, keepdim=True) * 0.5"),
    "row_mul": op(ROW, "row row", "torch.tanh({0} * {1})"),
    "col_sum": op(COL, "full full", "({0} * {1}).sum({outer}, keepdim=True) / {rows}"),
    "col_sum_flat": op(COL, "full full", "(({0} - {1}).sum({outer}) / {rows}).reshape(w.shape)"),
    "col_mean": op(COL, "full", "{0}.mean({outer}, keepdim=True)"),
    "col_var": op(COL, "full", "{0}.var({outer}, correction=0, keepdim=True)"),
    "col_max": op(COL, "full", "{0}.amax({outer}, keepdim=True).tanh()", forward_only=True, nonempty=True),
    "col_min": op(COL, "full", "{0}.amin({outer}, keepdim=True).tanh()", forward_only=True, nonempty=True),
    "col_max_of_input": op(COL, "input", "{0}.amax({outer}, keepdim=True) * 0.5", nonempty=True),
    "col_any": op(COL, "input", "({0} > 3).any({outer}[0], keepdim=True).to(x.dtype)", one_outer=True),
    "col_prod": op(COL, "full", "(1 + {0}.tanh() / {rows}).prod({outer}[0], keepdim=True)", one_outer=True),
    "col_scale": op(COL, "col", "{0} * 0.5 + 1"),
    "col_mul": op(COL, "col col", "torch.tanh({0} * {1})"),
    "write_full": op(WRITE, "input full", "{0}.mul_(0.5).add_({1})", forward_only=True),
    "write_col": op(WRITE, "col", "w.copy_({0})", forward_only=True),
}

# What moves elements. Each place is read, or written, once: no gradient is added up by atomics.
MOVES: dict[str, Op] = {
    "rolled": op(FULL, "full full", "torch.roll(torch.sin({0}), {k}, {dim}) + {1}"),
    "rolled_rows": op(FULL, "full full", "torch.tanh({0}) - torch.roll({1}, -{k}, 0)"),
    "padded_both": op(
        FULL,
        "full full",
        "F.pad(torch.sin({0}), (1, 1), value=0.5)[..., {k} % 3 :][..., :{last}] * {1}",
        nonempty=True,
    ),
    "padded_rows": op(FULL, "full full", "torch.cat([torch.zeros_like({0}[:1]), {1}[1:]]) + {0}"),
    "gathered_cols": op(
        FULL, "full full", "torch.sin({0}).index_select(-1, places({0}, -1, {k})) + {1}", nonempty=True
    ),
    "gathered_rows": op(FULL, "full full", "{0}[places({0}, 0, {k})] * torch.sigmoid({1})", nonempty=True),
    "gathered_each": op(
        FULL,
        "full full",
        "torch.gather({0}, -1, places({0}, -1, {k}).expand({0}.shape)) * 0.5 + {1}",
        nonempty=True,
    ),
    "looked_up": op(
        FULL, "col full", "{0}.expand({1}.shape)[places({1}, 0, {k})] * 0.5 + {1}", nonempty=True
    ),
    "scattered_each": op(
        FULL,
        "full full",
        "torch.scatter({1} * 0.5, -1, places({1}, -1, {k}).expand({1}.shape), torch.tanh({0}).to({1}.dtype))",
        nonempty=True,
    ),
    "copied_rows": op(
        FULL,
        "full full",
        "torch.index_copy({1} * 0.5, 0, places({1}, 0, {k}), torch.tanh({0}).to({1}.dtype))",
        nonempty=True,
    ),
    "put_rows": op(
        FULL,
        "full full",
        "({1} * 0.5).index_put((places({1}, 0, {k}),), torch.sin({0}).to({1}.dtype))",
        nonempty=True,
    ),
}

# Zeros of both signs, subnormal numbers, few bits, and comparisons of what half precision has rounded.
EDGES: dict[str, Op] = {
    "through_fp8": op(
        FULL, "input full", "{1} + saturated(({0} * 0.5).detach(), torch.float8_e4m3fn).to(x.dtype)"
    ),
    "through_int8": op(
        FULL,
        "input full",
        "{1} + ({0}.detach().float() * 16).round().clamp(-128, 127).to(torch.int8) * 0.0625",
        finite=True,
    ),
    "signed_zero": op(FULL, "input full", "torch.copysign({1}, torch.where({0} > 0.25, -0.0, {0}))"),
    "two_zeros": op(FULL, "input full", "{1} * torch.where({0} > 0, torch.where({0} > 1, 0.0, {0}), -0.0)"),
    "row_max_of_product": op(
        ROW, "input input", "({0} * {1}).amax({inner}, keepdim=True) * 0.5", nonempty=True
    ),
    "col_max_of_product": op(
        COL, "input input", "({0} * {1}).amax({outer}, keepdim=True) * 0.5", nonempty=True
    ),
    "sign_bit": op("full.b", "input", "torch.signbit({0})"),
    "sign_of_zero": op(  # Inductor's kernels compare float64 with 0
        "full.b",
        "input",
        "torch.signbit(torch.where({0} > 0, -0.0, torch.where({0} < -1, 0.0, {0})).float())",
    ),
    "subnormal": op("full.b", "input", "{0}.detach().float() * 1e-30 * 1e-12 != 0"),
    "highest_of_product": op(
        "full.b", "input input", "({0} * {1}) == ({0} * {1}).amax({inner}, keepdim=True)", nonempty=True
    ),
}

# Between a norm and a product, which reads it in memory. An element is where a gradient jumps by chance only.
# Then, norms of sums and in a row, and factors of one element, whose gradients add up all elements.
_ACTIVATIONS = {
    "relu": "torch.relu({})",
    "relu6": "F.hardtanh_({} * 3, 0, 6)",
    "leaky_relu": "F.leaky_relu_({}, 0.1)",
    "hardswish": "hardswish({} * 2)",
    "elu": "F.elu_({})",
    "silu": "F.silu({})",
}
_NORMED = "normed({0}, {1}, {k}, {inner}, {outer})"
BETWEEN: dict[str, Op] = {
    f"{name}_between": op(
        FULL,
        "input col",
        f"F.linear({text.format(_NORMED)}, m.to(x.dtype)).reshape({{0}}.shape)",
        most_cols=600,
    )
    for name, text in _ACTIVATIONS.items()
} | {
    "biased_norm": op(FULL, "full col", "normed({0} + {1}, {1}, {k}, {inner}, {outer}).reshape({0}.shape)"),
    "one_factor": op(FULL, "full col", "torch.tanh({0}) * ({1}.mean() + 1)"),
    "temperature": op(FULL, "full col", "torch.softmax({0} * ({1}.mean() + 1), -1)", nonempty=True),
    "three_norms": op(FULL, "full col", "chained({0}, {1}, m, {k}, {inner}, {outer})", most_cols=600),
}

# Values that have one axis twice, statistics in another order or of other statistics, and writes of another
# dtype or beyond a tensor's end.
_COLUMN = "{0}.reshape(-1, 1)", "{1}.reshape(1, -1)"
_EACH = {"few": "{k} % {last} :", "last": "-{k} :", "beyond": ": {last} + {k}"}
PAIRED: dict[str, Op] = {
    **{
        f"{name}_{space}s": op(f"{space}.p", f"{space} {space}", text.format(*_COLUMN), most_cols=600)
        for space in (ROW, COL)
        for name, text in {
            "outer": "{} * {}",
            "matrix_of": "{}.to(x.dtype) @ {}.to(x.dtype)",
            "larger_of": "torch.maximum({}, {})",
            "twice_of": "(lambda t: t + t.T)({} - {})",
            "triangle_of": "torch.triu({} + {})",
        }.items()
    },
    **{
        f"paired_{space}s": op(
            space,
            f"{space} {space}",
            "torch.tanh({} * {}).mean(0).reshape({{0}}.shape)".format(*_COLUMN),
            most_cols=600,
            nonempty=True,
        )
        for space in (ROW, COL)
    },
    "compared_counts": op("col.p", "col.i col.i", "{} > {}".format(*_COLUMN), most_cols=600),
    "turned_row": op(
        FULL, "full row", "{0} * torch.sin({1}.transpose(0, {dim}).contiguous()).transpose(0, {dim})"
    ),
    "turned_norm": op(
        FULL,
        "full",
        "(lambda t: t * torch.rsqrt(t.var(-1, correction=0, keepdim=True) + 0.5))"
        "({0}.transpose(0, {dim})).transpose(0, {dim})",
        nonempty=True,
    ),
    "response_norm": op(
        FULL,
        "full",
        "{0} * (lambda t: t / (t.mean(-1, keepdim=True) + 0.1))"
        "(({0}.square().mean({inner}, keepdim=True) + 0.1).sqrt())",
        nonempty=True,
    ),
    "response_of_columns": op(
        FULL,
        "full",
        "{0} * (lambda t: t / (t.mean() + 0.1))(({0}.square().mean({outer}, keepdim=True) + 0.1).sqrt())",
        nonempty=True,
    ),
    "col_of_cols": op(COL, "col", "{0} * torch.rsqrt({0}.square().mean() + 0.5)", nonempty=True),
    "selected_wide": op(
        FULL, "full full", "torch.select_scatter({1} * 0.5, {0}[-1].double(), 0, -1)", nonempty=True
    ),
    **{
        f"scattered_wide_{name}": op(
            FULL,
            "full full",
            f"torch.slice_scatter({{1}} * 0.5, torch.sin({{0}}[..., {part}]).double(), -1, {bounds})",
            nonempty=True,
        )
        for (name, part), bounds in zip(
            _EACH.items(), ("{k} % {last}", "-{k}", "0, {last} + {k}"), strict=True
        )
    },
    **{
        f"copied_{name}": op(
            FULL,
            "full full",
            f"(lambda t: (t[..., {part}].copy_(torch.sin({{0}}[..., {part}]).float()), t)[1])({{1}} + 0.5)",
            nonempty=True,
        )
        for name, part in _EACH.items()
    },
    "highest_of_quotient": op(
        "full.b",
        "input",
        "({0} / 11.3137085) == ({0} / 11.3137085).amax({inner}, keepdim=True)",
        nonempty=True,
        forward_only=True,
    ),
}

# Sums over other sets of axes beside those of the pair, and what is put together along a dim and computed of.
_HALF = "max(1, {last} // 2)"
TOGETHER: dict[str, Op] = {
    "gate_along": op(FULL, "full full", "{0} * torch.sigmoid({1}.mean({dim}, keepdim=True))", nonempty=True),
    "gate_of_sample": op(
        FULL,
        "full full",
        "{0} * torch.sigmoid({1}.mean(tuple(range(1, {1}.ndim)), keepdim=True))",
        nonempty=True,
    ),
    "gate_of_all": op(FULL, "full full", "{0} * torch.sigmoid({1}.mean())", nonempty=True),
    "table": op(FULL, "full full", "{0} + ({1} * 0.5).mean(0, keepdim=True).tanh()", nonempty=True),
    "position": op(FULL, "full full", "torch.sin({0} + {1}[:1])", nonempty=True),
    "less_both": op(
        FULL,
        "full full",
        "{0} - {1}.mean({inner}, keepdim=True) - {1}.mean({outer}, keepdim=True) + {1}.mean()",
        nonempty=True,
    ),
    "sink": op(
        FULL,
        "full full",
        "torch.cat([{0}, {1}[..., :1] * 0.5], -1).softmax(-1)[..., :-1] * {last} ** 0.5",
        nonempty=True,
    ),
    "sink_of_row": op(
        FULL,
        "full row",
        "torch.cat([{0}, {1}[..., :1].expand(*{0}.shape[:-1], 1)], -1).softmax(-1)[..., :-1] * {last} ** 0.5",
        nonempty=True,
    ),
    "gated_half": op(
        FULL,
        "full full",
        f"(lambda t: torch.cat([t[..., :{_HALF}] * torch.sigmoid(t[..., -{_HALF} :]), "
        f"t[..., {_HALF} :]], -1))({{0}} + {{1}})",
        nonempty=True,
    ),
    "gated_chunks": op(
        FULL,
        "full col",
        "(lambda a, b: a * F.silu(b))(*(torch.cat([{0}, {0} * 0.5], -1)"
        " + torch.cat([{1}.expand({0}.shape), -{1}.expand({0}.shape)], -1)).chunk(2, -1))",
        nonempty=True,
    ),
    "normed_head": op(
        FULL,
        "full full",
        "(lambda t: torch.cat([t[:, :1] * torch.rsqrt(t[:, :1].square().mean(-1, keepdim=True) + 0.5), "
        "t[:, 1:] * 0.5], 1))({0} + {1})",
        nonempty=True,
    ),
    "normed_apart": op(
        FULL,
        "full col",
        "torch.cat([normed(t, {1}[: len(t)], 2 * (len(t) > 1), {inner}, {outer}).reshape(t.shape) "
        "for t in ({0}[:1], {0}[1:])])",
        nonempty=True,
    ),
}

EFFECTS: dict[str, Op] = {
    "noise": op(FULL, "full", "{0} * torch.rand_like({0}, dtype=torch.float32).to({0}.dtype)"),
    "noise_row": op(ROW, "row", "{0} + torch.rand_like({0}, dtype=torch.float32)"),
    "noise_col": op(COL, "col", "{0} + torch.rand({0}.shape, device={0}.device)"),
    "dropout": op(FULL, "full", "{0} * F.dropout(torch.ones({0}.shape, device={0}.device), 0.25)"),
    "bernoulli": op("full.b", "full.b", "torch.bernoulli({0}.float() * 0.5 + 0.25) > 0"),
    "randint": op("full.i", "full", "torch.randint(-9, 9, {0}.shape, device={0}.device)"),
    "multinomial": op(
        FULL,
        "input full",
        "{1} + 0.25 * (torch.multinomial({0}.float().reshape(-1, {last}).abs() + 0.1, 1).sum() % 4)",
        finite=True,
    ),
    "note": op(FULL, "full", "effects.note({0}, {k})", kept=True),
    "note_row": op(ROW, "row", "effects.note({0}, {k} + 10)", kept=True),
    "note_col": op(COL, "col", "effects.note({0}, {k} + 20)", kept=True),
    "note_count": op("col.i", "col.i", "effects.note({0}, {k} + 30)", kept=True),
    "all_reduce": op(FULL, "full", "effects.all_reduce({0}, 'avg')", kept=True),
    "all_reduce_row": op(ROW, "row", "effects.all_reduce({0}, 'sum')", kept=True),
    "all_reduce_col": op(COL, "col", "effects.all_reduce({0}, 'sum')", kept=True),
    "all_reduce_count": op("col.i", "col.i", "effects.all_reduce({0}, 'sum')", kept=True),
    "foreach": op(FULL, "full full", "torch._foreach_mul([{0}, {1}], 0.5)[0]"),
    "foreach_cols": op(COL, "col col", "torch._foreach_add([{0}, {1}], [{1}, {0}])[1] * 0.5"),
    # `+ 0`: what an operator reads must not be what it writes.
    "bump": op(WRITE, "input full", "effects.bump([{0}], {1} + 0, {k})", forward_only=True),
    "bump_both": op(WRITE, "input full", "effects.bump([{0}, w], {1} + 0, {k})", forward_only=True),
    "write_foreach": op(
        WRITE, "input full", "torch._foreach_add_([{0}], [{1}.to({0}.dtype)])", forward_only=True
    ),
    "write_ints": op(WRITE, "full.i", "xi.copy_({0})", forward_only=True),
    "write_count": op(WRITE, "col.i", "wi.add_({0}.to(wi.dtype))", forward_only=True),
}
