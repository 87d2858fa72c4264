"""Integer arithmetic that changes nothing: what is left out, what stays, and that the bits are the same."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sympy
import torch
from expecttest import TestCase
from graphs import bf16, f32, traced, within_tile
from support import quantised
from support.quantised import RECIPES

from mixorder.ir.program import Compute, Load, LoopProgram, Nest, Reduce, Ref, Statement, Store, operands
from mixorder.ir.verify import Form, verify
from mixorder.lowering.tile import lower_tile
from mixorder.transform.powers_of_two import multiply_by_reciprocals
from mixorder.transform.ranges import simplify_ranges

i32, u8 = torch.int32, torch.uint8
Function = Callable[[Any], Any]


def lowered(function: Function, dtype: torch.dtype = bf16) -> LoopProgram:
    program = lower_tile(within_tile(traced(lambda x: function(x), ((256, 512), dtype))))
    return multiply_by_reciprocals(program)


def simplified(program: LoopProgram) -> LoopProgram:
    return verify(simplify_ranges(program), Form.BLOCKED)


def of_largest(*functions: Function, magnitude: Function = torch.abs) -> Function:
    """Results of the largest element of each block of 32, along rows and along columns, beside a product
    with each element."""

    def both(x: Any) -> Any:
        found = []
        for blocks, dim in ((x.view(256, 16, 32), 2), (x.view(8, 32, 512), 1)):
            largest = magnitude(blocks).amax(dim, keepdim=True).float()
            found += [*(function(largest) for function in functions), blocks * largest]
        return tuple(found)

    return both


def of_bits(function: Function) -> Function:
    return lambda x: function(x.view(i32))


def of_exponent(function: Function) -> Function:
    """Of an integer from 0 to 255."""
    return of_bits(lambda bits: function(bits >> 23))


def texts(program: LoopProgram) -> list[str]:
    """What the first store needs after the reduction: the ops, and the constants as numbers."""
    body = program.nests[0].body
    values = {s.name: s for s in body if isinstance(s, Compute)}
    first = next(i for i, s in enumerate(body) if isinstance(s, Reduce))
    last = next(i for i, s in enumerate(body) if isinstance(s, Store))

    def shown(arg: Any) -> str:
        stmt = values.get(arg.name) if isinstance(arg, Ref) else None
        return str(stmt.args[0]) if stmt is not None and stmt.op == "constant" else ""

    computed = [s for s in body[first:last] if isinstance(s, Compute) and s.op != "constant"]
    return [" ".join([s.op.removeprefix("bitwise_"), *filter(None, map(shown, s.args))]) for s in computed]


SHIFT = ["to_dtype_bitcast", "right_shift 23"]
RULES: dict[str, tuple[Function, list[str]]] = {
    "a mask": (of_exponent(lambda e: e & 255), SHIFT),
    "a mask of the sign": (of_bits(lambda b: b & 0x7FFFFFFF), ["to_dtype_bitcast"]),
    "a maximum": (of_exponent(lambda e: e.clamp(min=0)), SHIFT),
    "a minimum": (of_exponent(lambda e: e.clamp(max=255)), SHIFT),
    "one of two bounds": (of_exponent(lambda e: e.clamp(1, 255)), [*SHIFT, "maximum 1"]),
    "two constants": (of_exponent(lambda e: e - 127 - 8), [*SHIFT, "sub 135"]),
    "from a constant": (of_exponent(lambda e: (254 - e) + 3), [*SHIFT, "sub 257"]),
    "nothing in the end": (of_exponent(lambda e: e - 127 + 127), SHIFT),
    "beside a bound": (
        of_exponent(lambda e: (e - 135).clamp(min=-127) + 127),
        [*SHIFT, "sub 8", "maximum 0"],
    ),
    "beside a term": (
        of_exponent(lambda e: (e - 127) + (e >> 4) - 8),
        [*SHIFT, "right_shift 4", "sub 135", "add"],
    ),
    "a narrow cast": (of_exponent(lambda e: e.to(u8).int() << 23), [*SHIFT, "left_shift 23"]),
    "a narrow choice": (
        of_exponent(lambda e: torch.where(e == 3, 255, e.to(u8)).int() << 23),
        [*SHIFT, "eq 3", "where 255", "left_shift 23"],
    ),
    "a bound of floats": (
        of_exponent(lambda e: (e << 23).view(f32).clamp(min=2.0**-126)),
        [*SHIFT, "maximum 1", "left_shift 23", "to_dtype_bitcast"],
    ),
    "a bound of a float with a mantissa": (
        of_exponent(lambda e: (e << 23).view(f32).clamp(min=1.5)),
        [*SHIFT, "left_shift 23", "maximum 1069547520", "to_dtype_bitcast"],
    ),
    "half": (
        of_exponent(lambda e: (e.clamp(2, 254) << 23).view(f32) * 0.5),
        [*SHIFT, "maximum 2", "minimum 254", "left_shift 23", "sub 8388608", "to_dtype_bitcast"],
    ),
}
OTHERS: dict[str, Function] = {
    "a mask with zeros": of_exponent(lambda e: e & 127),
    "a mask with zeros inside": of_exponent(lambda e: e & 0b10111111111),
    "bounds that bind": of_exponent(lambda e: e.clamp(1, 254)),
    "an overflow": of_bits(lambda b: b + 5 + 7),
    "an overflow beside a bound": of_bits(lambda b: (b + 5).clamp(min=9) + 7),
    "a narrow cast that overflows": of_bits(lambda b: (b >> 22).to(u8).int() << 23),
    "int64": of_exponent(lambda e: (e.long() & 255) - 127 - 8),
    "a float that may be NaN": of_bits(lambda b: (b & 0x7FFFFFFE).view(f32).clamp(min=1.0)),
    "a negative bound": of_exponent(lambda e: (e << 23).view(f32).clamp(min=-1.0)),
    "no power of two": of_exponent(lambda e: (e.clamp(2, 253) << 23).view(f32) * 3),
    "a factor that may be infinite": of_exponent(lambda e: (e.clamp(min=2) << 23).view(f32) * 0.5),
    "a product that may be subnormal": of_exponent(lambda e: (e.clamp(1, 254) << 23).view(f32) * 0.5),
    "a product that may be infinite": of_exponent(lambda e: (e.clamp(1, 254) << 23).view(f32) * 2),
}


@pytest.mark.parametrize("name", RULES)
def test_what_is_left_out(name: str) -> None:
    function, expected = RULES[name]
    assert texts(simplified(lowered(of_largest(function)))) == expected


@pytest.mark.parametrize("name", OTHERS)
def test_what_stays(name: str) -> None:
    program = lowered(of_largest(OTHERS[name]))
    assert simplified(program) == program


def test_what_may_have_a_sign_is_masked() -> None:
    program = lowered(of_largest(of_exponent(lambda e: e & 255), magnitude=lambda x: x * 1))
    assert simplified(program) == program


def test_a_bound_that_is_stored_too_stays() -> None:
    def bound(exponent: Any) -> Any:
        return (exponent - 135).clamp(min=-127)

    program = lowered(of_largest(of_exponent(bound), of_exponent(lambda e: bound(e) + 127)))
    assert simplified(program) == program


@pytest.mark.parametrize("name", ["blocks_both", "squares", "delayed"])
def test_scales_of_floats_are_the_same(name: str) -> None:
    recipe = RECIPES[name]
    shapes = [(tuple(a.shape), a.dtype) for a in quantised.inputs(recipe, 256, 512, "cpu")]
    program = lower_tile(within_tile(traced(lambda *x: recipe.function(*x), *shapes)))
    assert simplify_ranges(program) == program


class TestWhole(TestCase):
    maxDiff = None

    def test_the_scale_of_mxfp8(self) -> None:
        """After the reduction along rows: 16 statements that are no constants become nine."""
        program = lowered(quantised.mx_both)
        first, last = "%view_1:", "%div:"
        shown = [str(s) for s in simplified(program).nests[0].body]
        start, end = (next(i for i, s in enumerate(shown) if s.startswith(n)) for n in (first, last))
        self.assertExpectedInline(
            "\n".join(shown[start:end]),
            """\
%view_1: i32 = to_dtype_bitcast(%amax, i32, f32)
%rshift: i32 = constant(23, i32)
%rshift.1: i32 = bitwise_right_shift(%view_1, %rshift)
%add.1.constant: i32 = constant(8, i32)
%add.1.sub: i32 = sub(%rshift.1, %add.1.constant)
%add.1.constant2: i32 = constant(0, i32)
%add.1: i32 = maximum(%add.1.sub, %add.1.constant2)
%convert_element_type_1: u8 = to_dtype(%add.1, u8, src_dtype=i32, use_compute_types=True)
store out0[512*i + j + 16*x] = %convert_element_type_1
%clamp_min_1.1.constant2: i32 = constant(1, i32)
%clamp_min_1.1.maximum: i32 = maximum(%add.1, %clamp_min_1.1.constant2)
%clamp_min_1.1.bitwise_left_shift: i32 = bitwise_left_shift(%clamp_min_1.1.maximum, %rshift)
%clamp_min_1.1.reciprocal.constant: i32 = constant(2130706432, i32)
%clamp_min_1.1.reciprocal.sub: i32 = sub(%clamp_min_1.1.reciprocal.constant, %clamp_min_1.1.bitwise_left_shift)
%clamp_min_1.1.reciprocal: f32 = to_dtype_bitcast(%clamp_min_1.1.reciprocal.sub, f32, i32)""",  # noqa: E501
        )


def maximum(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """One of both, as on a GPU. PyTorch's may be a NaN with a sign on a CPU."""
    return torch.where((a > b) | (a != a), a, b)


RUN: dict[str, Callable[..., torch.Tensor]] = {
    "abs": torch.abs,
    "constant": lambda value, dtype: torch.tensor(value, dtype=dtype),
    "to_dtype": lambda x, to, **_: x.to(to),
    "to_dtype_bitcast": lambda x, to, _: x.view(to),
    "bitwise_right_shift": torch.bitwise_right_shift,
    "bitwise_left_shift": torch.bitwise_left_shift,
    "bitwise_and": torch.bitwise_and,
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "maximum": maximum,
    "minimum": torch.minimum,
    "isnan": torch.isnan,
    "gt": torch.gt,
    "where": torch.where,
}


def results(program: LoopProgram, largest: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """The exponents that are stored, and the reciprocals of scales, where each block has such a largest
    element."""
    values: dict[str, torch.Tensor] = {}

    def value(arg: Any) -> Any:
        return values[arg.name] if isinstance(arg, Ref) else arg

    def run(stmt: Statement) -> None:
        if isinstance(stmt, Reduce):
            values[stmt.name] = largest
        elif isinstance(stmt, Compute) and stmt.op in RUN and values.keys() >= set(operands(stmt)):
            values[stmt.name] = RUN[stmt.op](*map(value, stmt.args), **dict(stmt.kwargs))
            assert values[stmt.name].dtype == stmt.dtype

    for stmt in program.nests[0].body:
        run(stmt)
        if isinstance(stmt, Store) and program.buffer(stmt.buffer).dtype == u8 and stmt.value.name in values:
            yield stmt.buffer, value(stmt.value)
        if isinstance(stmt, Compute) and stmt.name.endswith(".reciprocal"):
            yield stmt.name, values[stmt.name].view(i32)


def rounded(exponent: Function) -> Function:
    """As torchao has it: NaN has an exponent of its own."""

    def mx(blocks: Any, dim: int) -> Any:
        largest = blocks.abs().amax(dim, keepdim=True).float()
        biased = (exponent(largest.view(i32)).clamp(-127, 128) + 127).to(u8)
        biased = torch.where(largest.isnan(), 255, biased)
        scale = (biased.int() << 23).view(f32).clamp(min=2**-126)
        return biased, (blocks.float() / scale).to(quantised.F8)

    return lambda x: (*mx(x.view(256, 16, 32), 2), *mx(x.view(8, 32, 512), 1))


SCALES: dict[str, Function] = {
    "mx": quantised.mx_both,
    "mx4": quantised.mx4_both,
    "down": rounded(lambda b: ((b >> 23) & 255) - 127 - 8),
    "up": rounded(lambda b: ((b >> 23) & 255) - 127 + ((b & 0x7FFFFF) > 0) - 8),
    "even": rounded(lambda b: (((b + (1 << 19)) >> 23) & 255) - 127 - 8),
}


@pytest.mark.parametrize("name", SCALES)
def test_scales_are_the_same_bit_by_bit(name: str) -> None:
    """Of all exponents: zero, subnormal numbers, infinity and NaN too."""
    mantissas = torch.cat([torch.tensor([0, 1, 2, 2**22, 2**23 - 1]), torch.randint(2**23, (200,))])
    bits = (torch.arange(256)[:, None] << 23 | mantissas).to(i32).view(-1)
    before = lowered(SCALES[name])
    after = simplified(before)
    assert len(after.nests[0].body) < len(before.nests[0].body)
    expected, found = (dict(results(p, bits.view(f32))) for p in (before, after))
    assert len(expected) == 4 and expected.keys() == found.keys()
    for key, value in expected.items():
        assert torch.equal(value, found[key]), key


def any_program(generator: random.Random) -> LoopProgram:
    """A chain of operations on the bits of a positive float32, each with a value before it or a constant."""
    body: list[Statement] = [
        Load("x", "in0", sympy.S.Zero, f32),
        Compute("abs", "abs", (Ref("x"),), (), f32),
        Compute("bits", "to_dtype_bitcast", (Ref("abs"), i32, f32), (), i32),
    ]
    integers, floats = [Ref("bits")], [Ref("abs")]

    def put(op: str, *args: Any, dtype: torch.dtype = i32, **kwargs: Any) -> Ref:
        body.append(Compute(f"v{len(body)}", op, args, tuple(kwargs.items()), dtype))
        return Ref(body[-1].name)

    def number(*among: int) -> Ref:
        return put("constant", generator.choice(among), i32)

    near, far = (0, 1, 2, 8, 127, 135, 255), (-127, -1, 2**23 - 1, 2**23, 2**31 - 1, -(2**31), 255 << 23)
    for _ in range(generator.randrange(3, 14)):
        one, other = integers[-1], generator.choice(integers)
        op = generator.choice(("add", "sub", "maximum", "minimum", "bitwise_and", "shift", "narrow", "float"))
        if generator.random() < 0.7:
            other = number(*near, *far)
        if op == "shift":
            op = generator.choice(("bitwise_left_shift", "bitwise_right_shift"))
            integers.append(put(op, one, number(0, 1, 8, 22, 23, 24)))
        elif op == "narrow":
            cast = put("to_dtype", one, u8, dtype=u8, src_dtype=i32)
            if generator.random() < 0.5:
                chosen = put("constant", 255, u8, dtype=u8)
                cast = put("where", put("gt", one, other, dtype=torch.bool), chosen, cast, dtype=u8)
            integers.append(put("to_dtype", cast, i32, src_dtype=u8))
        elif op == "float":
            value = put("to_dtype_bitcast", one, f32, i32, dtype=f32)
            bound = put("constant", generator.choice((0.0, 2.0**-126, 1.0, 1.5)), f32, dtype=f32)
            half = put("constant", generator.choice((0.5, 2.0, 1.0, 0.25)), f32, dtype=f32)
            if generator.random() < 0.7:
                value = put("maximum", value, bound, dtype=f32)
            if generator.random() < 0.7:
                value = put("mul", half, value, dtype=f32)
            floats.append(value)
            integers.append(put("to_dtype_bitcast", value, i32, f32))
        else:
            integers.append(put(op, *generator.sample((one, other), 2)))
    stored = [integers[-1], generator.choice(integers), generator.choice(integers)]
    body += [Store(f"out{n}", sympy.S.Zero, value) for n, value in enumerate(stored)]
    return LoopProgram((), (Nest((), tuple(body)),))


def stored(program: LoopProgram, x: torch.Tensor) -> list[torch.Tensor]:
    values: dict[str, torch.Tensor] = {"x": x}
    found: list[torch.Tensor] = []
    for stmt in program.nests[0].body:
        if isinstance(stmt, Compute):
            args = [values[a.name] if isinstance(a, Ref) else a for a in stmt.args]
            result = RUN[stmt.op](*args, **dict(stmt.kwargs))
            values[stmt.name] = result.expand(len(x)).contiguous()  # vectors have other NaN than scalars
            assert result.dtype == stmt.dtype
        elif isinstance(stmt, Store):
            found.append(values[stmt.value.name])
    return found


def test_any_integers_are_the_same() -> None:
    """Overflows too."""
    special = torch.tensor([0, 1, 2**23 - 1, 2**23, 255 << 23, (255 << 23) + 1, 2**31 - 1], dtype=i32)
    bits = torch.cat([special, torch.arange(256, dtype=i32) << 23, torch.randint(2**31, (2000,)).to(i32)])
    changed = 0
    for seed in range(400):
        before = any_program(random.Random(seed))
        after = simplify_ranges(before)
        changed += before != after
        for expected, found in zip(*(stored(p, bits.view(f32)) for p in (before, after)), strict=True):
            assert torch.equal(expected, found), f"{seed}\n{before}\n{after}"
    assert changed > 200
