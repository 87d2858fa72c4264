"""No kernel waits without end: each loop of a text that may wait counts down, or up to a number."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import graphs
import pytest
from test_producers import kernel_of
from test_wide_offsets import TILES, WHOLE

from mixorder.codegen.exchange import Record, word
from mixorder.ir.reductions import AMAX
from mixorder.strategies import STRATEGIES
from mixorder.strategies.cooperative import COOPERATIVE


def unbounded(text: str) -> list[str]:
    """The loops of a kernel, in Triton or in assembly, that nothing bounds."""
    tree = ast.parse(text)
    loops = [node for node in ast.walk(tree) if isinstance(node, ast.While)]
    found = [ast.unparse(loop.test) for loop in loops if not any(counted(loop))]
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
    asms = {c.args[0].value for c in calls if "inline_asm" in ast.unparse(c.func)}  # type: ignore[attr-defined]
    return found + [body for asm in asms for body in spins(asm)]


def counted(loop: ast.While) -> Iterator[bool]:
    """Whether each condition that the loop needs is a bound: `n > 0`, where each turn takes one from `n`, or
    `n < most`, where each turn adds one, and `most` is only ever replaced by a number."""
    steps = {ast.unparse(s) for s in loop.body if isinstance(s, ast.AugAssign)}
    inside = [s for node in loop.body for s in ast.walk(node) if isinstance(s, ast.Assign)]
    for test in conditions(loop.test):
        count, limit = ast.unparse(test.left), ast.unparse(test.comparators[0])
        assigned = [s.value for s in inside if ast.unparse(s.targets[0]) == limit]
        fixed = all(re.fullmatch(rf"tl.where\(.*, \d+, {limit}\)", ast.unparse(v)) for v in assigned)
        own = any(ast.unparse(s.targets[0]) == count for s in inside)
        if isinstance(test.ops[0], ast.Gt):
            yield limit == "0" and f"{count} -= 1" in steps and not own
        elif isinstance(test.ops[0], ast.Lt):
            yield f"{count} += 1" in steps and fixed and not own


def conditions(test: ast.expr) -> list[ast.Compare]:
    if isinstance(test, ast.BinOp) and isinstance(test.op, ast.BitAnd):
        return conditions(test.left) + conditions(test.right)
    return [test] if isinstance(test, ast.Compare) else []


def spins(asm: str) -> Iterator[str]:
    """Loops of assembly without an exit that a counter takes."""
    for label in re.findall(r"(\w+):", asm):
        start = asm.index(f"{label}:")
        for back in re.finditer(rf"bra {label};", asm[start:]):
            body = asm[start : start + back.end()]
            left = re.search(r"sub\.u32 (\w+), \1, 1;", body)
            out = left and re.search(rf"setp\.ne\.and\.u32 (\w+), {left[1]}, 0, \w+; @!\1 bra (\w+);", body)
            if not out or asm.index(f"{out[2]}:") < start + back.end():
                yield body


@pytest.mark.parametrize(("name", "what"), WHOLE)
def test_strategies_of_rows_and_columns(name: str, what: str) -> None:
    strategy = next(s for s in STRATEGIES if s.name == name)
    loops, schedule = graphs.run_by(strategy, graphs.merged(graphs.only(WHOLE[name, what]())))
    texts = [source.text for source in strategy.generate(loops, schedule, "test")]
    assert [loop for text in texts for loop in unbounded(text)] == []
    if strategy is COOPERATIVE:
        assert "while " in texts[0] and "bra again" in texts[0]


@pytest.mark.parametrize("what", TILES)
def test_blocks_in_a_tile(what: str) -> None:
    function, shape = TILES[what]
    regions = graphs.find(graphs.traced(lambda x: function(x), (shape, graphs.bf16)))
    texts = [s.text for r in regions if r.orders is not None for s in graphs.kernels(r)[2]]
    assert texts and [loop for text in texts for loop in unbounded(text)] == []


@pytest.mark.parametrize(("rows", "cols"), [(16384, 4096), (16384, 1024), (2048, 12000)])
def test_values_of_rows_from_producers(rows: int, cols: int) -> None:
    _, _, source = kernel_of(rows, cols)
    assert "while " in source.text and unbounded(source.text) == []


ENDLESS = {
    "no count": "while tl.min((w != -1).to(tl.int32)) == 0:\n    w = tl.load(p)",
    "a count that is not needed": "while (w == 0) | (n > 0):\n    w = tl.load(p)\n    n -= 1",
    "a count that starts again": "while (w == 0) & (n > 0):\n    n -= 1\n    n = 5",
    "a count in a branch": "while (w == 0) & (n > 0):\n    if w:\n        n -= 1",
    "a limit that grows": "while n < most:\n    most = most + 1\n    n += 1",
}


@pytest.mark.parametrize("what", ENDLESS)
def test_what_is_found(what: str) -> None:
    assert unbounded(ENDLESS[what])


@pytest.mark.parametrize("gone", ["sub.u32 n, n, 1; ", "@!m bra done; ", "setp.ne.and.u32 m, n, 0, m; "])
def test_what_is_found_in_assembly(gone: str) -> None:
    text = Record(AMAX, 2, 12).total("p", "seen", "polls")
    assert unbounded(text) == [] and gone in text
    assert unbounded(text.replace(gone, ""))


def test_a_slot_is_written_in_one_way() -> None:
    """So that none has the bits of an empty one: NaN may have any."""
    strategy, what = COOPERATIVE.name, "rows"
    loops, schedule = graphs.run_by(COOPERATIVE, graphs.merged(graphs.only(WHOLE[strategy, what]())))
    texts = [COOPERATIVE.generate(loops, schedule, "test")[0].text, kernel_of(16384, 4096)[2].text]
    for text in texts:
        stores = [line for line in text.splitlines() if "tl.store(" in line and "mailbox_ptr" in line]
        assert stores
        for line in stores:
            (value,) = re.findall(r"tl\.where\((\w+) == \1,", line)
            assert word(value) in line
