"""Operators of random programs on integers, bools and 8-bit floats, and reductions in every dtype."""

from __future__ import annotations

from typing import Any

from .operators import COL, FULL, ROW, SPACES, Op, op

INTS = ("int8", "uint8", "int16", "int32", "int64")
FP8 = ("float8_e4m3fn", "float8_e5m2")

# In every space: the class of the result, those of the arguments ("." is numbers), the text.
_POINTWISE: dict[str, tuple[str, str, str]] = {
    "int_add": ("i", "i i", "{0} + {1}"),
    "int_sub": ("i", "i i", "{0} - {1}"),
    "int_mul": ("i", "i i", "{0} * {1}"),
    "int_and": ("i", "i i", "({0} & {1}) ^ ~{0}"),
    "int_or": ("i", "i i", "{0} | {1}"),
    "int_shift": ("i", "i", "({0} << 1) + ({0} >> 2)"),
    "int_rest": ("i", "i", "{0} % 7"),
    "int_floor": ("i", "i", "{0} // 3"),
    "int_abs": ("i", "i", "torch.abs(-{0}) + 1"),
    "int_clamp": ("i", "i", "{0}.clamp(3, 100)"),
    "int_max": ("i", "i i", "torch.maximum({0}, {1})"),
    "int_where": ("i", "b i i", "torch.where({0}, {1}, {2})"),
    "int_of_bool": ("i", "b", "{0} + 3"),
    "bool_gt": ("b", "i i", "{0} > {1}"),
    "bool_eq": ("b", "i i", "{0} % 3 == {1} % 3"),
    "bool_of_int": ("b", "i", "{0}.to(torch.bool)"),
    "bool_logic": ("b", "b b", "({0} & ~{1}) | ({0} ^ {1})"),
    "bool_add": ("b", "b b", "{0} + {1}"),
    "bool_mul": ("b", "b b", "{0} * {1}"),
    "bool_and_int": ("b", "i b", "torch.logical_and({0}, {1})"),
    "bool_le": ("b", "z z", "{0} <= {1}"),
    "bool_of_whole": ("b", "z", "{0}.to(torch.bool)"),
    "whole_add": ("z", "z z", "torch.clamp({0} + {1}, -64, 64)"),
    "whole_mul": ("z", "z z", "torch.clamp({0} * {1}, -64, 64)"),
    "whole_round": ("z", "z", "torch.round({0} * 0.5)"),
    "whole_floor": ("z", "z", "torch.floor({0} * 0.25)"),
    "whole_of_int": ("z", "i", "({0} % 16).float()"),
    "whole_of_bool": ("z", "b", "{0}.float()"),
    "of_int": (".", "i", "({0} % 8).to(x.dtype) * 0.25"),
    "of_bool": (".", "b", "{0}.to(x.dtype)"),
    "of_whole": (".", "z", "({0} * 0.03125).to(x.dtype)"),
    "masked": (".", "b . .", "torch.where({0}, {1}, {2} * 0.5)"),
    "masked_fill": (".", "b .", "{1}.masked_fill({0}, 0.5)"),
    "times_bool": (".", "b .", "{1} * {0}"),
    "times_int": (".", "i .", "{1} * ({0} % 4)"),
}
_FINITE = {
    "int_of_whole": ("i", "z", "{0}.to(torch.int8)"),
    "uint8_of_whole": ("i", "z", "{0}.abs().to(torch.uint8)"),
    "rounded": ("a", ".", "torch.round({0}.detach() * 16).clamp(-128, 127).to(torch.int8)"),
    "as_half": ("a", ".", "{0}.detach().to(torch.bfloat16)"),
    "as_fp8": ("a", ".", "({0}.detach() * 0.5).tanh().to(torch.float8_e4m3fn)"),
}
_CASTS = {f"as_{dtype}": ("i", "i", f"{{0}}.to(torch.{dtype})") for dtype in INTS}

_MIXED: dict[str, Op] = {
    "int_add_row": op("full.i", "full.i row.i", "{0} + {1}"),
    "int_mul_col": op("full.i", "full.i col.i", "{0} * {1}"),
    "int_row_col": op("full.i", "row.i col.i", "{0} - {1}"),
    "bool_gt_row": op("full.b", "full.i row.i", "{0} > {1}"),
    "bool_and_row": op("full.b", "full.b row.b", "{0} & {1}"),
    "bool_or_col": op("full.b", "full.b col.b", "{0} | {1}"),
    "whole_sub_row": op("full.z", "full.z row.z", "torch.clamp({0} - {1}, -64, 64)"),
    "whole_mul_row": op("full.z", "full.z row.z", "torch.clamp({0} * {1}, -64, 64)"),
    "whole_sub_col": op("full.z", "full.z col.z", "torch.clamp({0} - {1}, -64, 64)"),
    "where_row": op(FULL, "row.b full full", "torch.where({0}, {1}, {2} * 0.5)"),
    "where_col": op(FULL, "col.b full full", "torch.where({0}, {1} * 0.5, {2})"),
    "times_row_count": op(FULL, "full row.i", "{0} * ({1} % 4)"),
    "times_col_count": op(FULL, "full col.i", "{0} * ({1} % 4)"),
    "fp8_back": op(FULL, "full.q", "{0}.to(x.dtype)"),
    "fp8_whole": op("full.z", "full.q", "torch.round({0}.float() * 4).clamp(-64, 64)"),
    "codes_by_row": op(
        "full.a",
        "full row",
        "torch.round({0}.detach() / ({1}.detach().abs() + 1) * 32).clamp(-128, 127).to(torch.int8)",
        finite=True,
    ),
    "fp8_by_row": op(
        "full.a", "full row", "({0} / ({1}.abs() + 1)).detach().tanh().to(torch.float8_e5m2)", finite=True
    ),
    "codes": op("full.i", "input", "({0}.detach() * 8).to(torch.int8)", finite=True),
    "codes_uint8": op("full.i", "input", "({0}.detach().abs() * 8).to(torch.uint8)", finite=True),
    "codes_int16": op("full.i", "input", "({0}.detach() * 256).to(torch.int16)", finite=True),
    "codes_int64": op("full.i", "input", "({0}.detach() * 256).to(torch.int64)", finite=True),
    "above": op("full.b", "input", "{0} > 0.25"),
    "below_other": op("full.b", "input input", "{0} <= {1}"),
    "not_a_number": op("full.b", "input", "torch.isnan({0}) | ({0} < 0)"),
    "whole": op("full.z", "input", "torch.round({0}.detach().float() * 4)"),
} | {
    f"{name}_{dtype[7:]}": op("full.q", args, text.replace("FP8", f"torch.{dtype}"))
    for dtype in FP8
    for name, args, text in (
        ("fp8", "input", "saturated({0}.detach(), FP8)"),
        ("fp8_of_whole", "full.z", "({0} * 0.25).to(FP8)"),
    )
}

# Of DIM, the dims that are reduced, of which there are N; the result has SHAPE.
_REDUCTIONS: dict[str, tuple[str, str, str]] = {
    "int_sum": ("i", "full.i", "{0}.sum(DIM, keepdim=True)"),
    "int_sum_flat": ("i", "full.i", "{0}.sum(DIM).reshape(SHAPE)"),
    "int_sum_float": ("z", "full.i", "({0} % 16).sum(DIM, keepdim=True, dtype=torch.float32).clamp(-64, 64)"),
    "int_sum_double": ("d", "full.i", "({0} % 16).sum(DIM, keepdim=True, dtype=torch.float64)"),
    "int_mean": (".", "full.i", "({0} % 8).mean(DIM, keepdim=True, dtype={wide})"),
    "int_count": ("i", "full.i", "torch.count_nonzero({0}, DIM).reshape(SHAPE)"),
    "int_above": ("i", "full.i", "({0} > 0).sum(DIM, keepdim=True)"),
    "int_any": ("b", "full.i", "{0}.any(DIM, keepdim=True).bool()"),
    "int_all": ("b", "full.i", "{0}.all(DIM, keepdim=True).bool()"),
    "bool_sum": ("i", "full.b", "{0}.sum(DIM, keepdim=True)"),
    "bool_sum_int8": ("i", "full.b", "{0}.sum(DIM, keepdim=True, dtype=torch.int8)"),
    "bool_sum_int32": ("i", "full.b", "{0}.sum(DIM, keepdim=True, dtype=torch.int32)"),
    "bool_sum_bool": ("b", "full.b", "{0}.sum(DIM, keepdim=True, dtype=torch.bool)"),
    "bool_sum_float": ("z", "full.b", "{0}.sum(DIM, keepdim=True, dtype=torch.float32).clamp(0, 64)"),
    "bool_mean": (".", "full.b", "{0}.mean(DIM, keepdim=True, dtype={wide})"),
    "bool_count": ("i", "full.b", "torch.count_nonzero({0}, DIM).reshape(SHAPE)"),
    "bool_any": ("b", "full.b", "{0}.any(DIM, keepdim=True)"),
    "bool_all": ("b", "full.b", "{0}.all(DIM, keepdim=True)"),
    "whole_sum": ("z", "full.z full.z", "torch.clamp({0} * {1}, -64, 64).sum(DIM, keepdim=True) % 64"),
    "whole_sum_double": ("d", "full.z", "{0}.sum(DIM, keepdim=True, dtype=torch.float64)"),
    "whole_above": ("i", "full.z", "({0} > 0).sum(DIM, keepdim=True)"),
    "whole_count": ("i", "full.z", "torch.count_nonzero({0}, DIM).reshape(SHAPE)"),
    "whole_any": ("b", "full.z", "{0}.any(DIM, keepdim=True)"),
    "whole_all": ("b", "full.z", "{0}.all(DIM, keepdim=True)"),
    "sum_wide": (".", "full", "{0}.sum(DIM, keepdim=True, dtype={wide}) / N"),
    "mean_wide": (".", "full", "{0}.mean(DIM, keepdim=True, dtype={wide})"),
    "sum_nan": (".", "full", "{0}.nansum(DIM, keepdim=True, dtype={wide}) / N"),
    "sum_double": ("d", "input", "{0}.sum(DIM, keepdim=True, dtype=torch.float64)"),
    "mean_double": ("d", "input", "{0}.mean(DIM, keepdim=True, dtype=torch.float64)"),
    "norm_double": (
        "d",
        "input",
        "torch.linalg.vector_norm({0}.detach(), dim=DIM, keepdim=True, dtype=torch.float64)",
    ),
    "sum_float": ("a", "input", "{0}.detach().sum(DIM, keepdim=True, dtype=torch.float32)"),
    "mean_float": ("a", "input", "{0}.detach().mean(DIM, keepdim=True, dtype=torch.float32)"),
    "sum_half": ("a", "input", "{0}.detach().sum(DIM, keepdim=True, dtype=torch.float16)"),
    "mean_bfloat": ("a", "input", "{0}.detach().mean(DIM, keepdim=True, dtype=torch.bfloat16)"),
    "sum_bool": ("b", "input", "{0}.detach().sum(DIM, keepdim=True, dtype=torch.bool)"),
    "above": ("i", "input", "({0} > 0).sum(DIM, keepdim=True)"),
    "count": ("i", "input", "torch.count_nonzero({0} > 0.5, DIM).reshape(SHAPE)"),
    "count_of_numbers": ("i", "input", "torch.count_nonzero({0}, DIM).reshape(SHAPE)"),
    "any": ("b", "input", "{0}.any(DIM, keepdim=True)"),
    "all": ("b", "input", "{0}.all(DIM, keepdim=True)"),
    "all_above": ("b", "input", "({0} > -1.5).all(DIM, keepdim=True)"),
} | {
    f"int_sum_{dtype}": ("i", "full.i", f"{{0}}.sum(DIM, keepdim=True, dtype=torch.{dtype})")
    for dtype in INTS
}
_FINITE_REDUCTIONS = {
    f"sum_{dtype}": ("i", "input", f"({{0}}.detach() * 4).sum(DIM, keepdim=True, dtype=torch.{dtype})")
    for dtype in INTS
    if dtype != "uint8"  # a negative number has no defined value in it
} | {"whole_sum_int": ("i", "full.z", "{0}.sum(DIM, keepdim=True, dtype=torch.int64)")}
_EXTREMES = {
    "int_max": ("i", "full.i", "{0}.amax(DIM, keepdim=True)"),
    "int_min": ("i", "full.i", "{0}.amin(DIM, keepdim=True)"),
    "bool_max": ("b", "full.b", "{0}.amax(DIM, keepdim=True)"),
    "bool_min": ("b", "full.b", "{0}.amin(DIM, keepdim=True)"),
    "whole_max": ("z", "full.z", "{0}.amax(DIM, keepdim=True)"),
    "whole_min": ("z", "full.z", "{0}.amin(DIM, keepdim=True)"),
}
# Of one dim only.
_PRODUCTS = {
    "int_prod": ("i", "full.i", "{0}.prod(DIM[0], keepdim=True)"),
    "int_prod_int32": ("i", "full.i", "{0}.prod(DIM[0], keepdim=True, dtype=torch.int32)"),
    "bool_prod": ("i", "full.b", "{0}.prod(DIM[0], keepdim=True)"),
    "prod_wide": (".", "full", "(1 + {0}.tanh() / N).prod(DIM[0], keepdim=True, dtype={wide})"),
    "prod_double": ("d", "input", "{0}.detach().prod(DIM[0], keepdim=True, dtype=torch.float64)"),
    "one_any": ("b", "full.i", "{0}.any(DIM[0], keepdim=True).bool()"),
    "one_all": ("b", "full.b", "{0}.all(DIM[0], keepdim=True)"),
}
_PLACES = {
    "argmax": ("i", "input", "{0}.argmax(DIM[0], keepdim=True)"),
    "int_argmin": ("i", "full.i", "{0}.argmin(DIM[0], keepdim=True)"),
    "whole_argmax": ("i", "full.z", "{0}.argmax(DIM[0], keepdim=True)"),
}

# Reductions of what a reduction the other way has scaled: they join a region as it grows.
_SCALED: dict[str, Op] = {
    "count_scaled": op("col.i", "input row", "({0} * ({1} * {1} + 0.5) > 0).sum({outer}, keepdim=True)"),
    "count_scaled_numbers": op(
        "col.i", "input row", "torch.count_nonzero({0} * ({1} * {1} + 0.5), {outer}).reshape(w.shape)"
    ),
    "any_scaled": op("col.b", "input row", "({0} * ({1} * {1} + 0.5) > 0).any({outer}, keepdim=True)"),
    "all_scaled": op("col.b", "input row", "({0} * ({1} * {1} + 0.5) < 0).all({outer}, keepdim=True)"),
    "count_near_max": op(
        "col.i",
        "full.z",
        "({0} > {0}.amax({inner}, keepdim=True) - 8).sum({outer}, keepdim=True)",
        nonempty=True,
    ),
    "sum_below_max": op(
        "col.z",
        "full.z",
        "({0} - {0}.amax({inner}, keepdim=True)).clamp(-64, 0).sum({outer}, keepdim=True) % 64",
        nonempty=True,
    ),
    "row_count_scaled": op("row.i", "full.z col.z", "({0} * {1} > 1).sum({inner}, keepdim=True)"),
    "quantized": op(
        "full.a",
        "full",
        "({0} / {0}.abs().amax({inner}, keepdim=True).clamp(min=0.1) * 127).detach().round().to(torch.int8)",
        finite=True,
    ),
    "quantized_fp8": op(
        "full.a",
        "full",
        "({0} / {0}.abs().amax({inner}, keepdim=True).clamp(min=0.1) * 4).detach().to(torch.float8_e4m3fn)",
        finite=True,
    ),
}


def _kind(space: str, letter: str) -> str:
    return space if letter == "." else f"{space}.{letter}"


def _pointwise(table: dict[str, tuple[str, str, str]], **limits: Any) -> dict[str, Op]:
    return {
        f"{space}_{name}": Op(
            _kind(space, result), tuple(_kind(space, a) for a in args.split()), text, **limits
        )
        for space in SPACES
        for name, (result, args, text) in table.items()
    }


def _reductions(table: dict[str, tuple[str, str, str]], one: bool = False, **limits: Any) -> dict[str, Op]:
    found = {}
    for space, dims, size, like in ((ROW, "inner", "cols", "r"), (COL, "outer", "rows", "w")):
        words = {"DIM": f"{{{dims}}}", "N": f"{{{size}}}", "SHAPE": f"{like}.shape"}
        for name, (result, args, text) in table.items():
            for word, meaning in words.items():
                text = text.replace(word, meaning)
            found[f"{space}_of_{name}"] = op(
                _kind(space, result), args, text, **({f"one_{dims}": True} if one else {}), **limits
            )
    return found


POINTWISE = _pointwise(_POINTWISE | _CASTS) | _pointwise(_FINITE, finite=True) | _MIXED
REDUCTIONS = {
    **_SCALED,
    **_reductions(_REDUCTIONS),
    **_reductions(_FINITE_REDUCTIONS, finite=True),
    **_reductions(_EXTREMES, nonempty=True),
    **_reductions(_PRODUCTS, one=True),
    **_reductions(_PLACES, one=True, nonempty=True),
}
