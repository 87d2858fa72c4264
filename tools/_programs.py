"""Random programs as data, for differential fuzzing: made, written as Python source, and made smaller.

In: a `Draw` (a seeded random generator, or hypothesis). Out: a `Program`, whose `source` is a plain
function of tensors. Values are of one of three kinds, by what they range over: all axes ("full"), all but the
inner reduction's ("row"), all but the outer reduction's ("col"); where a kind has no axis, its size is 1. So
every pair of a row and a column reduction over one tensor is one that mixorder may fuse, whatever the classes
of the axes. Values stay around 1 in size, and no gradient jumps where a rounding differs: what compares or
takes an extreme under autograd does so on an input.
"""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Iterator, Sequence
from typing import Any, Protocol, TypeVar

T = TypeVar("T")
Shape = tuple[int, ...]

FULL, ROW, COL, INPUT = "full", "row", "col", "input"
DEFAULTS = {FULL: "x", INPUT: "x", ROW: "r", COL: "w"}
KINDS = {"x": FULL, "y": FULL, "r": ROW, "w": COL}
NARROWEST = {"float64": 53, "float32": 24, "float16": 11, "bfloat16": 8}  # bits of the significand
LAYOUTS = ("contiguous", "padded", "offset", "transposed", "expanded")
VIEWS = ("plain", "plain", "plain", "transposed", "sliced", "flat", "twice")
SMALL_COLS = (1, 2, 3, 5, 7, 8, 11, 12, 16, 17, 33, 50, 72)
COLS = (1, 2, 3, 7, 16, 31, 64, 100, 127, 128, 255, 257, 500, 512, 768, 1001, 1024, 1536, 2049, 4097, 8192)
WIDE_COLS = (12288, 16384, 16400, 20000, 32768, 65536)


class Draw(Protocol):
    """Where choices come from."""

    def integer(self, low: int, high: int) -> int: ...

    def pick(self, choices: Sequence[T]) -> T: ...


class Seeded:
    """Choices of a seeded random generator."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def integer(self, low: int, high: int) -> int:
        return self.random.randint(low, high)

    def pick(self, choices: Sequence[T]) -> T:
        return self.random.choice(choices)


@dataclasses.dataclass(frozen=True)
class Op:
    """`text` is an expression of the arguments {0}, {1}, ..; of the dims {inner}, {outer}, and the sizes
    {rows}, {cols} that they reduce; of {k}, a small number, and {dim}, an axis."""

    result: str
    args: tuple[str, ...]
    text: str
    forward_only: bool = False
    one_inner: bool = False
    one_outer: bool = False
    most_cols: int = 1 << 30


def _op(result: str, args: str, text: str, **limits: Any) -> Op:
    return Op(result, tuple(args.split()), text, **limits)


OPS: dict[str, Op] = {
    "mul": _op(FULL, "full full", "torch.tanh({0} * {1})"),
    "add": _op(FULL, "full full", "({0} + {1}) * 0.5"),
    "sub": _op(FULL, "full full", "{0} - {1} * 0.5"),
    "mul_row": _op(FULL, "full row", "{0} * {1}"),
    "sub_row": _op(FULL, "full row", "{0} - {1}"),
    "sub_mul_row": _op(FULL, "full full row", "{0} - {1} * {2}"),
    "mul_col": _op(FULL, "full col", "{0} * {1}"),
    "add_col": _op(FULL, "full col", "{0} + {1} * 0.5"),
    "over_rms": _op(FULL, "full row", "{0} * torch.rsqrt({1} * {1} + 0.5)"),
    "sin": _op(FULL, "full", "torch.sin({0})"),
    "gauss": _op(FULL, "full", "torch.exp(-{0} * {0})"),
    "gelu": _op(FULL, "full", "F.gelu({0})"),
    "gate": _op(FULL, "full full", "{0} * torch.sigmoid({1})"),
    "where": _op(FULL, "input full full", "torch.where({0} > 0.25, {1}, {2} * 0.5)"),
    "relu": _op(FULL, "input", "torch.relu({0})"),
    "widen": _op(FULL, "full", "{0}.to(torch.promote_types({0}.dtype, torch.float32))"),
    "narrow": _op(FULL, "full", "{0}.to(x.dtype)"),
    "layer_norm": _op(FULL, "full", "F.layer_norm({0}, {0}.shape[-1:])", one_inner=True),
    "softmax": _op(FULL, "full", "torch.softmax({0}, -1) * {cols} ** 0.5", one_inner=True),
    "matmul": _op(FULL, "full", "{0}.to(m.dtype) @ m", most_cols=600),
    "cumsum": _op(FULL, "full", "{0}.cumsum(-1) / {cols}"),
    "merged_dims": _op(
        FULL, "full full", "torch.sin({0}.reshape(-1, {0}.shape[-1])).reshape({0}.shape) + {1}"
    ),
    "permuted": _op(
        FULL,
        "full full",
        "torch.sin({0}.transpose(0, {dim}).contiguous()).transpose(0, {dim}) * 0.5 + {1}",
    ),
    "view_permuted": _op(FULL, "full full", "torch.cos({0}.transpose(0, {dim})).transpose(0, {dim}) - {1}"),
    "flipped": _op(FULL, "full full", "torch.sin({0}).flip({dim}) + {1}"),
    "rotated": _op(FULL, "full full", "torch.cat([-{0}[..., {k} % {last} :], {1}[..., : {k} % {last}]], -1)"),
    "rotated_rows": _op(FULL, "full full", "torch.cat([{0}[1:] * 0.5, torch.tanh({1}[:1])])"),
    "padded": _op(FULL, "full full", "F.pad(torch.tanh({0}[..., {k} % {last} :]), ({k} % {last}, 0)) + {1}"),
    "scattered": _op(
        FULL,
        "full full",
        "torch.slice_scatter({1} * 0.5, torch.sin({0}[..., {k} % {last} :]).to({1}.dtype), -1, {k} % {last})",
    ),
    "selected": _op(FULL, "full full", "torch.select_scatter({1} * 0.5, {0}[0].to({1}.dtype), 0, 0)"),
    "row_sum": _op(ROW, "full full", "({0} * {1}).sum({inner}, keepdim=True) / {cols}"),
    "row_sum_flat": _op(ROW, "full full", "(({0} - {1}).sum({inner}) / {cols}).reshape(r.shape)"),
    "row_mean": _op(ROW, "full", "{0}.mean({inner}, keepdim=True)"),
    "row_var": _op(ROW, "full", "{0}.var({inner}, correction=0, keepdim=True)"),
    "row_rms": _op(ROW, "full", "torch.sqrt({0}.square().mean({inner}, keepdim=True) + 0.1)"),
    "row_max": _op(ROW, "full", "{0}.amax({inner}, keepdim=True).tanh()", forward_only=True),
    "row_min": _op(ROW, "full", "{0}.amin({inner}, keepdim=True).tanh()", forward_only=True),
    "row_max_of_input": _op(ROW, "input", "{0}.amax({inner}, keepdim=True) * 0.5"),
    "row_any": _op(ROW, "input", "({0} > 2).any({inner}[0], keepdim=True).to(x.dtype)", one_inner=True),
    "row_prod": _op(ROW, "full", "(1 + {0}.tanh() / {cols}).prod(-1, keepdim=True)", one_inner=True),
    "row_logsumexp": _op(ROW, "full", "torch.logsumexp({0}, {inner}, keepdim=True) * 0.25"),
    "row_scale": _op(ROW, "row", "{0} * 0.5 + 1"),
    "row_mul": _op(ROW, "row row", "torch.tanh({0} * {1})"),
    "col_sum": _op(COL, "full full", "({0} * {1}).sum({outer}, keepdim=True) / {rows}"),
    "col_sum_flat": _op(COL, "full full", "(({0} - {1}).sum({outer}) / {rows}).reshape(w.shape)"),
    "col_mean": _op(COL, "full", "{0}.mean({outer}, keepdim=True)"),
    "col_var": _op(COL, "full", "{0}.var({outer}, correction=0, keepdim=True)"),
    "col_max": _op(COL, "full", "{0}.amax({outer}, keepdim=True).tanh()", forward_only=True),
    "col_min": _op(COL, "full", "{0}.amin({outer}, keepdim=True).tanh()", forward_only=True),
    "col_max_of_input": _op(COL, "input", "{0}.amax({outer}, keepdim=True) * 0.5"),
    "col_any": _op(COL, "input", "({0} > 3).any({outer}[0], keepdim=True).to(x.dtype)", one_outer=True),
    "col_prod": _op(COL, "full", "(1 + {0}.tanh() / {rows}).prod({outer}[0], keepdim=True)", one_outer=True),
    "col_scale": _op(COL, "col", "{0} * 0.5 + 1"),
    "col_mul": _op(COL, "col col", "torch.tanh({0} * {1})"),
    "write_full": _op("write", "input full", "{0}.mul_(0.5).add_({1})", forward_only=True),
    "write_col": _op("write", "col", "w.copy_({0})", forward_only=True),
}
_LIKELY = ("row_sum", "col_sum") * 4 + ("mul_row", "sub_mul_row", "mul_col", "row_mean", "col_sum_flat") * 2


@dataclasses.dataclass(frozen=True)
class Step:
    """One value: its name, its operator, the names of its arguments, and a small number for its size."""

    name: str
    op: str
    args: tuple[str, ...]
    number: int = 0


@dataclasses.dataclass(frozen=True)
class Program:
    """A function of `x`, `y` (full), `r` (row), `w` (col) and `m` (cols x cols), and how it is run.

    `outputs` are names with a view. `layouts` are those of x, y and, in turn, upstream gradients. `planted`
    puts nan or inf at a place (modulo the size) of an input. `backward`: what counts are the gradients of the
    inputs. `dynamic`: the first axis that only the outer reduction reduces is symbolic, and the program is
    run with more of it as well. `strategy`: the way to run rows that is tried first ("shared" by programs,
    read "twice"); empty for the pipeline's own choice. `seed` is that of the inputs' numbers.
    """

    shape: Shape
    inner: Shape
    outer: Shape
    steps: tuple[Step, ...]
    outputs: tuple[tuple[str, str], ...]
    dtype: str = "float32"
    weight_dtype: str = "float32"
    layouts: tuple[str, ...] = ("contiguous",)
    planted: tuple[tuple[str, int, str], ...] = ()
    backward: bool = False
    dynamic: bool = False
    split_size: int = 0
    strategy: str = ""
    seed: int = 0

    @property
    def kinds(self) -> dict[str, str]:
        """The kind of every name."""
        return KINDS | {s.name: OPS[s.op].result for s in self.steps}

    @property
    def dynamic_dim(self) -> int | None:
        rows = [d for d in self.outer if d not in self.inner]
        return rows[0] if self.dynamic and rows else None

    def shape_of(self, kind: str, rows_added: int = 0) -> Shape:
        """The shape of a value; `rows_added` lengthens the symbolic axis."""
        ones = {ROW: self.inner, COL: self.outer}.get(kind, ())
        shape = [1 if d in ones else n for d, n in enumerate(self.shape)]
        if self.dynamic_dim is not None and self.dynamic_dim not in ones:
            shape[self.dynamic_dim] += rows_added
        return tuple(shape)

    @property
    def uses_matrix(self) -> bool:
        return any(s.op == "matmul" for s in self.steps)

    @property
    def inputs(self) -> tuple[str, ...]:
        return ("x", "y", "r", "w", *(("m",) if self.uses_matrix else ()))

    def source(self) -> str:
        """The program as the text of a function."""
        lines = [f"def program({', '.join(self.inputs)}):"]
        known = dict(KINDS)
        for step in self.steps:
            op = OPS[step.op]
            args = [self._known(a, kind, known) for a, kind in zip(step.args, op.args, strict=True)]
            text = op.text.format(*args, **self._sizes(step.number))
            lines.append(f"    {text}" if op.result == "write" else f"    {step.name} = {text}")
            known[step.name] = op.result
        results = [self._viewed(name if name in known else "x", view) for name, view in self.outputs]
        lines.append(f"    return [{', '.join(results)}]")
        return "\n".join(lines) + "\n"

    @staticmethod
    def _known(name: str, kind: str, known: dict[str, str]) -> str:
        """The name, or the kind's own input where shrinking has taken its step away."""
        wanted = FULL if kind == INPUT else kind
        legal = known.get(name) == wanted and (kind != INPUT or name in KINDS)
        return name if legal else DEFAULTS[kind]

    def _sizes(self, number: int) -> dict[str, Any]:
        rows, cols = (math.prod(self.shape[d] for d in dims) for dims in (self.outer, self.inner))
        return {
            "inner": self.inner,
            "outer": self.outer,
            "rows": rows,
            "cols": cols,
            "k": number,
            "last": self.shape[-1],
            "dim": number % (len(self.shape) - 1) + 1,
        }

    def _viewed(self, name: str, view: str) -> str:
        return {
            "plain": name,
            "transposed": f"{name}.transpose(0, -1)",
            "sliced": f"{name}[..., :1]",
            "flat": f"{name}.reshape(-1)",
            "twice": f"{name}, {name}.transpose(0, 1)",
        }[view]

    def without_dead_steps(self) -> Program:
        """The same program without the steps that no output and no write depends on."""
        live = {name for name, _ in self.outputs}
        kept = []
        for step in reversed(self.steps):
            if step.name in live or OPS[step.op].result == "write":
                kept.append(step)
                live.update(step.args)
        return dataclasses.replace(self, steps=tuple(reversed(kept)))


def make(draw: Draw, *, small: bool, seed: int = 0) -> Program:
    """A random program. `small`: of sizes for the interpreter, else for a GPU; `seed` for its numbers."""
    shape, inner, outer = _space(draw, small)
    backward = draw.integer(0, 2) > 0
    legal = [name for name, op in OPS.items() if _fits(op, shape, inner, outer, backward)]
    wanted = [draw.pick(_LIKELY if draw.integer(0, 1) else legal) for _ in range(draw.integer(3, 14))]
    wanted.insert(draw.integer(0, len(wanted)), "row_sum")
    wanted.insert(draw.integer(0, len(wanted)), "col_sum")
    kinds, steps = dict(KINDS), []
    for i, name in enumerate(wanted):
        args = tuple(_argument(draw, kind, kinds) for kind in OPS[name].args)
        steps.append(Step(f"v{i}", name, args, draw.integer(1, 5)))
        kinds[f"v{i}"] = OPS[name].result
    made = [s.name for s in steps if kinds[s.name] != "write"]
    last = {kinds[name]: name for name in made}
    outputs = dict.fromkeys([*last.values(), *(draw.pick(made) for _ in range(draw.integer(0, 3)))])
    dtype = draw.pick(("float32", "float32", "bfloat16", "bfloat16", "float16", "float64"))
    planted = [
        (draw.pick(("x", "y")), draw.integer(0, math.prod(shape) - 1), draw.pick(("nan", "inf", "-inf")))
        for _ in range(draw.integer(1, 2) if draw.integer(0, 5) == 0 else 0)
    ]
    program = Program(
        shape,
        inner,
        outer,
        tuple(steps),
        tuple((name, draw.pick(VIEWS)) for name in outputs),
        dtype,
        draw.pick((dtype, "float32")) if dtype != "float64" else dtype,
        tuple(draw.pick(LAYOUTS) if draw.integer(0, 2) == 0 else "contiguous" for _ in range(4)),
        tuple(planted),
        backward,
        draw.integer(0, 3) == 0,
        draw.pick((0, 0, 0, 1, 3, 64)),
        draw.pick(("", "", "shared", "twice")),
        seed,
    )
    return program.without_dead_steps()


def _space(draw: Draw, small: bool) -> tuple[Shape, Shape, Shape]:
    """A shape, and the dims that the inner and the outer reductions reduce."""
    cols = draw.pick(SMALL_COLS if small else COLS if draw.integer(0, 9) else WIDE_COLS)
    most = 400 if small else max(1 << 20, 2 * cols)
    rows = draw.integer(1, min(most // cols, 13 if small else draw.pick((40, 700, 6000))) - 1) + 1
    split = next((n for n in (draw.integer(2, 5), 3, 2) if rows % n == 0), 1)
    few = draw.integer(2, 3 if small else 5)
    match draw.pick(("norm", "norm", "batched", "heads", "sample", "image", "dims")):
        case "norm":
            return (rows, cols), (1,), (0,)
        case "batched":
            return (split, rows // split, cols), (2,), (0, 1)
        case "heads":
            return (max(1, rows // few), few, cols), (2,), (0,)
        case "sample":
            return (few, max(1, rows // few), cols), (2,), (1,)
        case "image":
            return (max(1, rows // few), few, draw.integer(1, 4), max(1, cols // 3)), (2, 3), (0, 2, 3)
        case _:
            return (rows, draw.integer(2, 3), max(1, cols // 3)), (1, 2), (0,)


def _fits(op: Op, shape: Shape, inner: Shape, outer: Shape, backward: bool) -> bool:
    return (
        not (op.forward_only and backward)
        and not (op.one_inner and len(inner) > 1)
        and not (op.one_outer and len(outer) > 1)
        and shape[-1] <= op.most_cols
    )


def _argument(draw: Draw, kind: str, kinds: dict[str, str]) -> str:
    """A value of the kind; the later ones are drawn more often."""
    if kind == INPUT:
        return draw.pick(("x", "y"))
    names = [name for name, k in kinds.items() if k == kind]
    return names[max(draw.integer(0, len(names) - 1), draw.integer(0, len(names) - 1))]


def smaller(program: Program) -> Iterator[Program]:
    """Simpler programs, the boldest first. A shrinker takes the first that still fails, and asks again."""
    for candidate in (*_fewer(program), *_plainer(program), *_shorter(program)):
        candidate = candidate.without_dead_steps()
        if candidate != program:
            yield candidate


def _fewer(program: Program) -> Iterator[Program]:
    """With fewer outputs, then with fewer steps; arguments that are gone become inputs."""
    for output in program.outputs if len(program.outputs) > 1 else ():
        yield dataclasses.replace(program, outputs=(output,))
    for i in range(len(program.outputs) if len(program.outputs) > 2 else 0):
        yield dataclasses.replace(program, outputs=program.outputs[:i] + program.outputs[i + 1 :])
    length = len(program.steps) // 2
    while length:
        for start in range(0, len(program.steps), length):
            yield dataclasses.replace(program, steps=program.steps[:start] + program.steps[start + length :])
        length //= 2
    for i, step in enumerate(program.steps):
        for j, name in enumerate(step.args):
            plain = DEFAULTS[OPS[step.op].args[j]]
            if name != plain:
                args = (*step.args[:j], plain, *step.args[j + 1 :])
                steps = (*program.steps[:i], dataclasses.replace(step, args=args), *program.steps[i + 1 :])
                yield dataclasses.replace(program, steps=steps)


def _plainer(program: Program) -> Iterator[Program]:
    for change in (
        {"planted": ()},
        {"dynamic": False},
        {"layouts": ("contiguous",)},
        {"split_size": 0},
        {"strategy": ""},
        {"weight_dtype": program.dtype},
        {"dtype": "float32", "weight_dtype": "float32"},
        {"outputs": tuple((name, "plain") for name, _ in program.outputs)},
        {"planted": program.planted[:1]},
        {"backward": False},
    ):
        yield dataclasses.replace(program, **change)


def _shorter(program: Program) -> Iterator[Program]:
    """With fewer elements, one axis at a time."""
    for dim, size in enumerate(program.shape):
        for now in sorted({1, 2, size // 2, size - 1}):
            if 0 < now < size:
                shape = (*program.shape[:dim], now, *program.shape[dim + 1 :])
                yield dataclasses.replace(program, shape=shape)
