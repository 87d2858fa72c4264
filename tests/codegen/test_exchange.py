"""The words that programs exchange: as ptxas takes them, and as the interpreter understands them."""

from __future__ import annotations

import ast
import itertools
import re
from typing import Any

import numpy
import pytest

from mixorder.codegen.exchange import MAX_WORDS, POLLS, Record, interpreted
from mixorder.ir.reductions import AMAX, AMIN, SUM, ReductionKind
from mixorder.transform.cooperative import EMPTY

KINDS = (SUM, AMAX, AMIN)
PARTS = range(2, MAX_WORDS + 1)
JOIN = {SUM: numpy.add, AMAX: numpy.maximum, AMIN: numpy.minimum}
BITS = {SUM: 0.0, AMAX: -numpy.inf, AMIN: numpy.inf}


def call_of(text: str) -> tuple[str, str, int]:
    """The asm, the constraints, and the number of arguments of an `inline_asm_elementwise`."""
    call = ast.parse(text, mode="eval").body
    assert isinstance(call, ast.Call) and ast.unparse(call.func) == "tl.inline_asm_elementwise"
    asm, constraints, args = call.args
    assert (
        isinstance(asm, ast.Constant) and isinstance(constraints, ast.Constant) and isinstance(args, ast.List)
    )
    keywords = {k.arg: ast.unparse(k.value) for k in call.keywords}
    assert keywords["is_pure"] == "True"
    return asm.value, constraints.value, len(args.elts)


def records() -> list[Record]:
    every = itertools.product(KINDS, range(1, 5), PARTS)
    return [r for r in itertools.starmap(Record, every) if r.values * r.lanes <= MAX_WORDS]


def test_constraints_name_every_operand() -> None:
    for record in records():
        for text, results in ((record.peek("p"), 1), (record.total("p", "s", "n"), 1 + record.values)):
            asm, constraints, args = call_of(text)
            operands = constraints.split(",")
            assert len(operands) == results + args
            assert [c.startswith("=") for c in operands] == [True] * results + [False] * args
            assert {int(n) for n in re.findall(r"\$(\d+)", asm)} == set(range(results + args))
            assert asm.count("{") == asm.count("}")


def test_a_result_is_no_operand_while_operands_are_read() -> None:
    """`total` writes its flag in a loop that still reads the pointer: a result has its own register."""
    _, constraints, _ = call_of(Record(SUM, 2, 8).total("p", "s", "n"))
    assert [c for c in constraints.split(",") if "=" in c] == ["=&r", "=&f", "=&f"]


def interpret(text: str, *args: Any) -> list[Any]:
    found = interpreted(call_of(text)[0], [numpy.array(a) for a in args])
    assert found is not None
    return found


def words_of(record: Record, values: numpy.ndarray) -> numpy.ndarray:
    """A record in memory: the parts' values, and whatever lies in the words that no part has."""
    words = numpy.full((record.values, record.lanes), EMPTY, numpy.int32)
    words[:, : record.parts] = values.astype(numpy.float32).view(numpy.int32)
    return words


def totals(record: Record, words: numpy.ndarray) -> tuple[int, list[numpy.float32]]:
    seen = interpret(record.peek("p"), words.ctypes.data)
    flag, *values = interpret(record.total("p", "s", "n"), words.ctypes.data, seen[0], POLLS)
    return int(flag), list(values)


def butterfly(record: Record, values: numpy.ndarray) -> numpy.ndarray:
    """What 32 lanes of a warp make of one reduction's parts: each step joins a lane with another one."""
    lanes = numpy.full(record.lanes, BITS[record.kind], numpy.float32)
    lanes[: record.parts] = values
    step = record.lanes // 2
    while step:
        lanes = JOIN[record.kind](lanes, lanes[numpy.arange(record.lanes) ^ step])
        step //= 2
    assert len(set(lanes.view(numpy.int32))) == 1  # in whatever lane it is asked for
    return lanes[0]


@pytest.mark.parametrize("kind", KINDS, ids=lambda k: k.name)
def test_totals_are_those_of_a_warp(kind: ReductionKind) -> None:
    rng = numpy.random.default_rng(0)
    for record in [r for r in records() if r.kind is kind]:
        values = rng.normal(size=(record.values, record.parts)).astype(numpy.float32)
        flag, found = totals(record, words_of(record, values))
        expected = [butterfly(record, row) for row in values]
        assert flag == 1
        assert [v.item() for v in found] == [v.item() for v in expected]  # bit for bit: not close, equal


@pytest.mark.parametrize("parts", [2, 3, 17, 32])
def test_a_missing_word_is_noticed(parts: int) -> None:
    for values in range(1, MAX_WORDS // Record(SUM, 1, parts).lanes + 1):
        record = Record(SUM, values, parts)
        for value, part in itertools.product(range(values), range(parts)):
            words = words_of(record, numpy.ones((values, parts)))
            words[value, part] = EMPTY
            assert totals(record, words)[0] == 0
            words[value, part] = 0
            assert totals(record, words)[0] == 1
