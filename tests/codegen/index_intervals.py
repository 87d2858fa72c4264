"""The integers of a kernel's text as intervals: which index arithmetic can leave the 32 bits it is done in.

`overflows` runs the text as abstract values. An integer has its least and largest value and its width, by
Triton's rules: a number of the text takes the width of the other operand, and of two operands the wider one
counts. What is loaded, and floats, are `DATA`, which no check is made of. Lanes beyond the end of a tensor
count like the others: an index that wraps around could pass its mask.
"""

from __future__ import annotations

import ast
import dataclasses
from typing import Any

import sympy

from mixorder.codegen.source import KernelSource
from mixorder.transform.cooperative import EMPTY

LIMIT = 2**31
LARGEST_SIZE = LIMIT - 2**16  # of a symbolic one in 32 bits; a grid over more rows than that pads beyond
DATA = "data"  # no index
POINTER = "pointer"
NUMBER = 0  # the width of a number of the text
_KEEP = ("broadcast_to", "reshape", "permute", "multiple_of", "max_contiguous")
_DATA = (
    "load",
    "dot",
    "sum",
    "max",
    "min",
    "reduce",
    "fma",
    "div_rn",
    "exp",
    "sqrt_rn",
    "abs",
    "zeros",
    "join",
)
_DATA += ("split", "sigmoid", "log", "floor", "ceil", "zeros_like")
_FLOATS = ("float", "libdevice", "triton_helpers", "tl_math")


@dataclasses.dataclass(frozen=True)
class Whole:
    low: int
    high: int
    width: int = NUMBER


def overflows(source: KernelSource) -> list[str]:
    """Lines of a kernel in which an integer may not fit, with the part that may not."""
    return _Run(source).found


class _Run:
    def __init__(self, source: KernelSource) -> None:
        tree = ast.parse(source.text)
        self.functions = {f.name: f for f in tree.body if isinstance(f, ast.FunctionDef)}
        self.found = list[str]()
        number, sizes = sympy.sympify(source.grid).as_coeff_Mul()  # programs for each place on a batch axis
        self.grid = int(number) if sizes == 1 else LARGEST_SIZE
        self.always = {"program // batch": Whole(0, int(number) - 1)}
        self.known: dict[str, Whole] = {}  # what conditions say of expressions, by their text
        kernel = self.functions[source.name]
        args = {a.arg: POINTER for a in kernel.args.args}
        args |= {size: Whole(0, LARGEST_SIZE, 32) for size in source.sizes}
        args |= {name: Whole(value, value) for name, value in source.config.constants}
        self.call(kernel, args)

    def call(self, function: ast.FunctionDef, env: dict[str, Any]) -> Any:
        before, self.known = self.known, {}
        try:
            for stmt in function.body:
                if isinstance(stmt, ast.Return):
                    return self.value(stmt.value, env)
                self.run(stmt, env)
        finally:
            self.known = before
        return DATA

    def report(self, node: ast.AST, what: str) -> None:
        line = f"{ast.unparse(node)}: {what}"
        if line not in self.found:
            self.found.append(line)

    # Statements.

    def run(self, stmt: ast.stmt, env: dict[str, Any]) -> None:
        match stmt:
            case ast.Assign(targets=[target]):
                self.assign(target, self.value(stmt.value, env), env)
            case ast.AnnAssign(target=target):
                self.assign(target, self.value(stmt.value, env), env)
            case ast.AugAssign(target=ast.Name() as target):
                both = ast.BinOp(ast.Name(target.id), stmt.op, stmt.value)
                self.assign(target, self.value(both, env), env)
            case ast.Expr():
                self.value(stmt.value, env)
            case ast.If():
                self.branches(stmt, env)
            case ast.For(target=ast.Name() as target):
                self.loop(stmt.body, env, lambda: {target.id: self.walked(stmt.iter, env)})
            case ast.While():
                self.loop(stmt.body, env, dict, stmt.test)
            case ast.Pass():
                pass
            case _:
                raise NotImplementedError(ast.unparse(stmt))

    def assign(self, target: ast.expr, value: Any, env: dict[str, Any]) -> None:
        if isinstance(target, ast.Tuple):
            values = value if isinstance(value, list) else [value] * len(target.elts)
            for one, part in zip(target.elts, values, strict=True):
                self.assign(one, part, env)
            return
        assert isinstance(target, ast.Name)
        env[target.id] = value
        self.known = {text: of for text, of in self.known.items() if target.id not in _names(text)}

    def branches(self, stmt: ast.If, env: dict[str, Any]) -> None:
        self.value(stmt.test, env)
        results, known = [], self.known
        for body, holds in ((stmt.body, True), (stmt.orelse, False)):
            own = dict(env)
            self.known = known | self.told(stmt.test, own, holds)
            for one in body:
                self.run(one, own)
            results.append(own)
        self.known = known
        env.update(_joined(*results))

    def loop(
        self, body: list[ast.stmt], env: dict[str, Any], first: Any, test: ast.expr | None = None
    ) -> None:
        """Run a body until no value changes."""
        known = self.known
        for turn in range(100):
            own = dict(env) | first()
            if test is not None:
                self.value(test, own)
                self.known = known | self.told(test, own, True)
            for stmt in body:
                self.run(stmt, own)
            self.known = known
            after = _joined(env, own)
            if after == env:
                return
            env.update({name: _widened(env.get(name), of) if turn > 2 else of for name, of in after.items()})
        raise AssertionError("a loop whose values do not settle")

    def walked(self, walk: ast.expr, env: dict[str, Any]) -> Whole:
        """What the variable of a `for` is."""
        assert isinstance(walk, ast.Call)
        numbers = [self.value(arg, env) for arg in walk.args]
        start, end = ([Whole(0, 0)] * (len(numbers) == 1) + numbers)[:2]
        width = max(32, start.width, end.width, 64 * (end.width == NUMBER and end.high >= LIMIT))
        return Whole(start.low, max(start.low, end.high - 1), width)

    def told(self, test: ast.expr, env: dict[str, Any], holds: bool) -> dict[str, Whole]:
        """What a comparison with an integer says of its left side."""
        if isinstance(test, ast.BinOp) and isinstance(test.op, ast.BitAnd) and holds:
            return self.told(test.left, env, True) | self.told(test.right, env, True)
        if not isinstance(test, ast.Compare):
            return {}
        left, right = self.value(test.left, env), self.value(test.comparators[0], env)
        if not isinstance(left, Whole) or not isinstance(right, Whole):
            return {}
        low, high = left.low, left.high
        match type(test.ops[0]), holds:
            case (ast.Lt, True) | (ast.GtE, False):
                high = min(high, right.high - 1)
            case (ast.Lt, False) | (ast.GtE, True):
                low = max(low, right.low)
            case (ast.Gt, True):
                low = max(low, right.low + 1)
        return {ast.unparse(test.left): Whole(low, high, left.width)}

    # Expressions.

    def value(self, node: Any, env: dict[str, Any]) -> Any:
        found = self.raw(node, env)
        told = (self.always | self.known).get(ast.unparse(node))
        if told is not None and isinstance(found, Whole):
            return Whole(max(found.low, told.low), min(found.high, told.high), found.width)
        return found

    def raw(self, node: Any, env: dict[str, Any]) -> Any:
        match node:
            case ast.Constant(value=bool() | float() | str() | None):
                return DATA
            case ast.Constant(value=int() as n):
                return Whole(n, n)
            case ast.Name():
                return env.get(node.id, DATA)
            case ast.List() | ast.Tuple():
                return [self.value(one, env) for one in node.elts]
            case ast.BinOp():
                return self.combined(node, self.value(node.left, env), self.value(node.right, env))
            case ast.UnaryOp():
                return self.negated(node, self.value(node.operand, env))
            case ast.Compare():
                sides = [self.value(one, env) for one in (node.left, *node.comparators)]
                self.width(node, [one for one in sides if isinstance(one, Whole)])
                return DATA
            case ast.Subscript():
                of = self.value(node.value, env)
                whole = isinstance(node.slice, ast.Constant) and isinstance(of, list)
                return of[node.slice.value] if whole else of
            case ast.Attribute():
                return DATA
            case ast.Call():
                return self.called(node, env)
            case ast.BoolOp() | ast.IfExp():
                return DATA
        raise NotImplementedError(ast.unparse(node))

    def negated(self, node: ast.UnaryOp, value: Any) -> Any:
        if not isinstance(value, Whole) or not isinstance(node.op, ast.USub):
            return DATA
        return self.fitting(node, Whole(-value.high, -value.low, value.width))

    def combined(self, node: ast.BinOp, left: Any, right: Any) -> Any:
        if POINTER in (left, right):
            offset = right if left == POINTER else left
            if isinstance(offset, Whole) and offset.width == NUMBER:
                self.fitting(node, Whole(offset.low, offset.high, 32))
            return POINTER
        if not isinstance(left, Whole) or not isinstance(right, Whole):
            return DATA
        width = self.width(node, [left, right])
        match node.op:
            case ast.Add():
                ends = [left.low + right.low, left.high + right.high]
            case ast.Sub():
                ends = [left.low - right.high, left.high - right.low]
            case ast.Mult():
                ends = [a * b for a in (left.low, left.high) for b in (right.low, right.high)]
            case ast.FloorDiv():
                by = (max(right.low, 1), right.high)
                ends = [abs(a) // b * (1 if a >= 0 else -1) for a in (left.low, left.high) for b in by]
            case ast.Mod():
                most = right.high - 1
                ends = [0 if left.low >= 0 else -most, min(most, left.high) if left.low >= 0 else most]
            case _:
                return DATA
        return self.fitting(node, Whole(min(ends), max(ends), width))

    def width(self, node: ast.AST, values: list[Whole]) -> int:
        """The width that values are computed in. A number of the text must fit it."""
        width = max((one.width for one in values), default=NUMBER)
        for one in values:
            if one.width == NUMBER and width == 32:
                self.fitting(node, Whole(one.low, one.high, 32))
        return width

    def fitting(self, node: ast.AST, value: Whole) -> Whole:
        if value.width == 32 and not -LIMIT <= value.low <= value.high < LIMIT:
            self.report(node, f"{value.low} to {value.high}")
            return Whole(max(value.low, -LIMIT), min(value.high, LIMIT - 1), 32)
        return value  # no tensor needs more than 64 bits, whatever its symbolic sizes could be

    def called(self, node: ast.Call, env: dict[str, Any]) -> Any:
        args = [self.value(arg, env) for arg in node.args]
        text = ast.unparse(node.func)
        module, _, name = text.rpartition(".")
        if text in self.functions:
            function = self.functions[text]
            return self.call(function, dict(zip([a.arg for a in function.args.args], args, strict=True)))
        if module == "triton_helpers" and name in ("div_floor_integer", "remainder_integer"):
            op = ast.FloorDiv() if name == "div_floor_integer" else ast.Mod()
            return self.combined(ast.BinOp(node.args[0], op, node.args[1]), *args)
        if module == "tl":
            return self.built_in(node, name, args)
        if name == "to" and isinstance(node.func, ast.Attribute):
            return self.cast(node, self.value(node.func.value, env))
        if module.split(".")[0] in _FLOATS or text in _FLOATS:
            return DATA
        raise NotImplementedError(ast.unparse(node))

    @staticmethod
    def cast(node: ast.Call, value: Any) -> Any:
        width = {"tl.int32": 32, "tl.int64": 64}.get(ast.unparse(node.args[0]))
        if not isinstance(value, Whole) or width is None or node.keywords:
            return DATA
        fits = width == 64 or -LIMIT <= value.low <= value.high < LIMIT
        return Whole(value.low, value.high, width) if fits else DATA  # it is cut off on purpose

    def built_in(self, node: ast.Call, name: str, args: list[Any]) -> Any:
        wholes = [arg for arg in args if isinstance(arg, Whole)]
        match name:
            case "program_id":
                return Whole(0, self.grid - 1, 32)
            case "arange":
                return Whole(args[0].low, args[1].high - 1, 32)
            case "atomic_add":  # the counter of a kernel's programs
                return Whole(EMPTY, EMPTY + self.grid - 1, 32)
            case "full":
                return self.cast(ast.Call(node.func, [node.args[2]], []), args[1])
            case "cdiv":
                up = ast.BinOp(ast.BinOp(node.args[0], ast.Add(), node.args[1]), ast.Sub(), ast.Constant(1))
                total = self.combined(up, args[0], Whole(args[1].low - 1, args[1].high - 1))
                return self.combined(ast.BinOp(up, ast.FloorDiv(), node.args[1]), total, args[1])
            case "minimum" | "maximum" | "where" if len(wholes) == len(args) - (name == "where"):
                width = self.width(node, wholes)
                lows, highs = [w.low for w in wholes], [w.high for w in wholes]
                pick = {"minimum": (min, min), "maximum": (max, max), "where": (min, max)}[name]
                return Whole(pick[0](lows), pick[1](highs), width)
            case "minimum" | "maximum" | "where":
                return DATA
            case "inline_asm_elementwise":
                return self.through(node, args[2])
            case "store":
                return DATA
        if name in _KEEP:
            return args[0]
        if name in _DATA or not wholes:
            return DATA
        raise NotImplementedError(ast.unparse(node))

    def through(self, node: ast.Call, values: list[Any]) -> Any:
        """Assembly that passes a number on, which has 32 bits, or that gives data."""
        if "mixorder_pass" not in ast.unparse(node.args[0]):
            return DATA
        if values[0].width == 64:
            self.report(node, "64 bits in a register of 32")
        return values[0]


def _names(text: str) -> set[str]:
    return {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}


def _joined(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Variables after either of two courses."""
    return {name: _either(one.get(name), other.get(name)) for name in one | other}


def _widened(before: Any, after: Any) -> Any:
    """What changes from turn to turn, as far as it may go: conditions say where it ends."""
    if not isinstance(before, Whole) or not isinstance(after, Whole) or before == after:
        return after
    low = -LIMIT if after.low < before.low else after.low
    return Whole(low, LIMIT - 1 if after.high > before.high else after.high, after.width)


def _either(one: Any, other: Any) -> Any:
    if one is None or other is None or one == other:
        return other if one is None else one
    if isinstance(one, Whole) and isinstance(other, Whole):
        return Whole(min(one.low, other.low), max(one.high, other.high), max(one.width, other.width))
    return DATA
