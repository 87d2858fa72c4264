"""Loops of a kernel's text that nothing bounds: each that may wait has to count down, or up to a number."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator


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
