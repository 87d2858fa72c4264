"""Random programs as data, for differential fuzzing: made, and written as Python source.

In: a seed. Out: a `Program`, whose `source` is a plain function of tensors. `operators.py` says of which
kinds values are. Where a kind has no axis, its size is 1, so every pair of a row and a column reduction over
one tensor is one that mixorder may fuse, whatever the classes of the axes. Of some spaces, the row reduction
is over a reduction group. Numbers stay around 1 in size, and
nothing jumps where a rounding differs: what compares, rounds or takes an extreme under autograd does so on an
input, or on what was made of inputs without rounding.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Sequence
from random import Random
from typing import Any

from mixorder.schedule.persistent import MAX_COLS

from .discrete import FP8, INTS, POINTWISE, REDUCTIONS
from .operators import (
    BETWEEN,
    COL,
    DEFAULTS,
    EDGES,
    EFFECTS,
    FLOATS,
    FULL,
    INPUT,
    KINDS,
    MORE_KINDS,
    MOVES,
    PAIRED,
    ROW,
    TOGETHER,
    WRITE,
    Op,
    space_of,
)

Shape = tuple[int, ...]

OPS = FLOATS | MOVES | EDGES | POINTWISE | REDUCTIONS | BETWEEN | PAIRED | TOGETHER | EFFECTS
NARROWEST = {"float64": 53, "float32": 24, "float16": 11, "bfloat16": 8}  # bits of the significand
LAYOUTS = ("contiguous", "padded", "offset", "transposed", "expanded", "channels-last")
FINITE_PLANTS = ("-0.0", "0.0", "smallest", "subnormal")
PLANTS = ("nan", "inf", "-inf", *FINITE_PLANTS)
VIEWS = ("plain", "plain", "plain", "transposed", "sliced", "flat", "twice")
SMALL_COLS = (1, 2, 3, 5, 7, 8, 11, 12, 16, 17, 33, 50, 72)
COLS = (1, 2, 3, 7, 16, 31, 64, 100, 127, 128, 255, 257, 500, 512, 768, 1001, 1024, 1536, 2049, 4097, 8192)
WIDE_COLS = (12288, 16384, 16400, 20000, 32768, 65536)


_LIKELY = ("row_sum", "col_sum") * 4 + ("mul_row", "sub_mul_row", "mul_col", "row_mean", "col_sum_flat") * 2
_THEMES = (
    _LIKELY,
    _LIKELY,
    tuple(POINTWISE),
    tuple(REDUCTIONS),
    tuple(POINTWISE | REDUCTIONS),
    tuple(EFFECTS),
    tuple(MOVES),
    tuple(EDGES),
    tuple(BETWEEN),
    tuple(MOVES | EDGES),
    *(tuple(PAIRED),) * 3,
    *(tuple(TOGETHER),) * 4,
)


@dataclasses.dataclass(frozen=True)
class Step:
    """One value: its name, its operator, the names of its arguments, and a small number for its size."""

    name: str
    op: str
    args: tuple[str, ...]
    number: int = 0


@dataclasses.dataclass(frozen=True)
class Program:
    """A function of `x`, `y` (full), `r` (row), `w` (col) and what else it names, and how it is run: `m`
    (cols x cols), `xi`, `ri`, `wi` (integers of `int_dtype`), `xb`, `rb`, `wb` (truth values), `xq` (of
    `fp8_dtype`).

    `outputs` are names with a view. `layouts` are those of x, y and, in turn, upstream gradients. `planted`
    puts one of `PLANTS` at a place of an input (modulo its size). `backward`: gradients of the inputs are
    what counts. `dynamic`: the first axis that the outer reduction reduces, if possible alone, is symbolic,
    and the program is run with the other `sizes` of it as well; `oblivious`: by the same graph, if they are 0
    or 1. `strategy`: the way to run rows that is tried first (`cooperative`); empty for the pipeline's own
    choice. `seed` is that of the inputs' numbers.
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
    int_dtype: str = "int32"
    fp8_dtype: str = "float8_e4m3fn"
    sizes: tuple[int, ...] = ()
    oblivious: bool = False

    @property
    def kinds(self) -> dict[str, str]:
        """The kind of every name."""
        return KINDS | MORE_KINDS | {s.name: OPS[s.op].result for s in self.steps}

    @property
    def dynamic_dim(self) -> int | None:
        return _rows(self.inner, self.outer) if self.dynamic else None

    def ones(self, kind: str) -> Shape:
        """The dims that a value lacks."""
        return {ROW: self.inner, COL: self.outer}.get(space_of(kind), ())

    def shape_of(self, kind: str, size: int | None = None) -> Shape:
        """The shape of a value; `size` is another one of the symbolic axis."""
        ones = self.ones(kind)
        shape = [1 if d in ones else n for d, n in enumerate(self.shape)]
        if size is not None and self.dynamic_dim is not None and self.dynamic_dim not in ones:
            shape[self.dynamic_dim] = size
        return tuple(shape)

    @property
    def inputs(self) -> tuple[str, ...]:
        words = set(re.findall(r"\w+", "\n".join(self._lines())))
        return (*KINDS, *(name for name in ("m", *MORE_KINDS) if name in words))

    @property
    def has_effects(self) -> bool:
        return any(s.op in EFFECTS for s in self.steps)

    @property
    def sound(self) -> bool:
        """Whether values that must not be rounded are computed from inputs that no step has written."""
        written: set[str] = set()
        for step in self.steps:
            op = OPS[step.op]
            if op.result == WRITE:
                written.add(step.args[0])
            elif any(
                kind == INPUT and name in written for name, kind in zip(step.args, op.args, strict=True)
            ):
                return False
        return True

    def source(self) -> str:
        """The program as the text of a function."""
        return "\n".join([f"def program({', '.join(self.inputs)}):", *self._lines()]) + "\n"

    def _lines(self) -> list[str]:
        lines = []
        known = KINDS | MORE_KINDS
        for step in self.steps:
            op = OPS[step.op]
            args = [self._known(a, kind, known) for a, kind in zip(step.args, op.args, strict=True)]
            text = op.text.format(*args, **self._sizes(step.number))
            lines.append(f"    {text}" if op.result == WRITE else f"    {step.name} = {text}")
            known[step.name] = op.result
        results = [self._viewed(name, view) for name, view in self._results(known)]
        return [*lines, f"    return [{', '.join(results)}]"]

    def _results(self, known: dict[str, str]) -> list[tuple[str, str]]:
        return [(name if name in known else "x", view) for name, view in self.outputs]

    @property
    def result_classes(self) -> list[str]:
        """Of each result of the function: the class of its kind, empty for numbers."""
        kinds = self.kinds
        return [
            kinds[name].partition(".")[2]
            for name, view in self._results(kinds)
            for _ in range(2 if view == "twice" else 1)
        ]

    @staticmethod
    def _known(name: str, kind: str, known: dict[str, str]) -> str:
        """The name, or the kind's own input where the name is none of that kind."""
        wanted = FULL if kind == INPUT else kind
        legal = known.get(name) == wanted and (kind != INPUT or name in KINDS)
        return name if legal else DEFAULTS[kind]

    def _sizes(self, number: int) -> dict[str, Any]:
        rows, cols = (math.prod(self.shape[d] for d in dims) for dims in (self.outer, self.inner))
        return {
            "inner": self.inner,
            "outer": self.outer,
            "rows": max(1, rows),
            "cols": max(1, cols),
            "k": number,
            "last": max(1, self.shape[-1]),
            "wide": "torch.promote_types(x.dtype, torch.float32)",
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
            if step.name in live or OPS[step.op].result == WRITE or OPS[step.op].kept:
                kept.append(step)
                live.update(step.args)
        return dataclasses.replace(self, steps=tuple(reversed(kept)))


def make(seed: int, *, small: bool, wanted: Sequence[str] = ()) -> Program:
    """The random program of a seed, which is also that of its numbers. `small`: of sizes for the interpreter,
    else for a GPU. `wanted`: operators that it has, where they fit, besides the sums of a pair; drawn if
    there are none."""
    draw = Random(seed)
    shape, inner, outer = _space(draw, small)
    backward = draw.randint(0, 2) > 0
    dynamic = draw.randint(0, 3) == 0
    first = shape[_rows(inner, outer)]
    sizes = (
        tuple(dict.fromkeys(draw.choice((0, 1, 2, first + 3, first + 3)) for _ in range(2)))
        if dynamic
        else ()
    )
    planted = [
        (draw.choice(("x", "y")), draw.randint(0, 1 << 20), draw.choice(PLANTS))
        for _ in range(draw.randint(1, 4) if draw.randint(0, 3) == 0 else 0)
    ]
    empty = 0 in shape or 0 in sizes
    legal = [
        name
        for name, op in OPS.items()
        if _fits(op, shape, inner, outer, backward)
        and not ((op.finite or op.nonempty) and empty)
        and not (op.finite and not {what for _, _, what in planted} <= {*FINITE_PLANTS})
    ]
    steps = _steps(draw, [n for n in wanted if n in legal] or _wanted(draw, legal))
    dtype = draw.choice(("float32", "float32", "bfloat16", "bfloat16", "float16", "float64"))
    program = Program(
        shape,
        inner,
        outer,
        steps,
        _outputs(draw, steps, unused=bool(wanted)),
        dtype,
        draw.choice((dtype, "float32")) if dtype != "float64" else dtype,
        tuple(draw.choice(LAYOUTS) if draw.randint(0, 2) == 0 else "contiguous" for _ in range(4)),
        tuple(planted),
        backward,
        dynamic,
        draw.choice((0, 0, 0, 1, 3, 64)),
        draw.choice(("", "", "cooperative")),
        seed,
        draw.choice(INTS),
        draw.choice(FP8),
        sizes,
        dynamic and draw.randint(0, 1) == 0,
    )
    return program.without_dead_steps()


def _wanted(draw: Random, legal: Sequence[str]) -> list[str]:
    """Operators of a theme, of the usual ones, and any, in turns."""
    theme = [name for name in draw.choice(_THEMES) if name in legal] or legal
    usual = [name for name in _LIKELY if name in legal]
    return [
        draw.choice((theme, usual, legal)[min(2, draw.randint(0, 3))]) for _ in range(draw.randint(3, 14))
    ]


def _steps(draw: Random, wanted: list[str]) -> tuple[Step, ...]:
    """The operators in their order, with at least one row sum and one column sum."""
    wanted.insert(draw.randint(0, len(wanted)), "row_sum")
    wanted.insert(draw.randint(0, len(wanted)), "col_sum")
    kinds, steps = KINDS | MORE_KINDS, []
    written: set[str] = set()
    for i, name in enumerate(wanted):
        op = OPS[name]
        given = tuple(n for n in ("x", "y") if n not in written or op.result == WRITE)
        if INPUT in op.args and not given:
            continue
        args = tuple(draw.choice(given) if k == INPUT else _argument(draw, k, kinds) for k in op.args)
        steps.append(Step(f"v{i}", name, args, draw.randint(1, 5)))
        kinds[f"v{i}"] = op.result
        if op.result == WRITE:
            written.add(args[0])
    return tuple(steps)


def _outputs(draw: Random, steps: Sequence[Step], unused: bool) -> tuple[tuple[str, str], ...]:
    """The last number of each space, what is only given back, the last of some other kinds, and any; with
    `unused`, also what nothing is made of."""
    made = {s.name: OPS[s.op].result for s in steps if OPS[s.op].result != WRITE}
    last = {kind: name for name, kind in made.items()}
    names = [name for kind, name in last.items() if kind in DEFAULTS and "." not in kind]
    names += [name for name, kind in made.items() if kind not in DEFAULTS]
    names += [name for kind, name in last.items() if "." in kind and draw.randint(0, 1)]
    names += [draw.choice(tuple(made)) for _ in range(draw.randint(0, 3))]
    used = {name for step in steps for name in step.args}
    names += [name for name in made if unused and name not in used]
    return tuple((name, draw.choice(VIEWS)) for name in dict.fromkeys(names))


def _space(draw: Random, small: bool) -> tuple[Shape, Shape, Shape]:
    """A shape, and the dims that the inner and the outer reductions reduce."""
    cols = draw.choice(SMALL_COLS if small else COLS if draw.randint(0, 9) else WIDE_COLS)
    most = 400 if small else max(1 << 20, 2 * cols)
    rows = draw.randint(1, min(most // cols, 13 if small else draw.choice((40, 700, 6000))) - 1) + 1
    split = next((n for n in (draw.randint(2, 5), 3, 2) if rows % n == 0), 1)
    few = draw.randint(2, 3 if small else 5)
    if draw.randint(0, 15) == 0:
        rows, cols, split, few = draw.choice(
            ((0, cols, 1, few), (rows, 0, split, few), (rows, cols, split, 0))
        )
    match draw.choice(("norm", "reduction group", "batched", "heads", "sample", "image", "dims")):
        case "norm":
            return (rows, cols), (1,), (0,)
        case "reduction group":
            return _reduction_group(draw, cols, most)
        case "batched":
            return (split, rows // split, cols), (2,), (0, 1)
        case "heads":
            return (max(1, rows // max(1, few)), few, cols), (2,), (0,)
        case "sample":
            return (few, max(1, rows // max(1, few)), cols), (2,), (1,)
        case "image":
            return (
                (max(1, rows // max(1, few)), few, draw.randint(1, 4), cols and max(1, cols // 3)),
                (2, 3),
                (0, 2, 3),
            )
        case _:
            return (rows, draw.randint(2, 3), cols and max(1, cols // 3)), (1, 2), (0,)


def _reduction_group(draw: Random, cols: int, most: int) -> tuple[Shape, Shape, Shape]:
    """Samples of channels, reduced over more elements than Inductor holds, or a program: of a channel, of
    vectors, of a channel of a sample, before or behind its places."""
    samples, places = draw.randint(1, 3), draw.choice((64, 1024, MAX_COLS)) + draw.randint(1, 200)
    channels = min(cols, max(5, most // (samples * places)))
    return draw.choice(
        (
            ((samples, channels, places), (0, 2), (0, 2)),
            ((samples * places, channels), (0,), (0,)),
            ((samples, 2, channels, places), (3,), (0, 3)),
            ((samples, places, channels), (1,), (0, 1)),
        )
    )


def _rows(inner: Shape, outer: Shape) -> int:
    """The first dim that only the outer reduction reduces, or both if there is no such."""
    return next((d for d in outer if d not in inner), outer[0])


def _fits(op: Op, shape: Shape, inner: Shape, outer: Shape, backward: bool) -> bool:
    return (
        not (op.forward_only and backward)
        and not (op.one_inner and inner != (len(shape) - 1,))
        and not (op.one_outer and len(outer) > 1)
        and shape[-1] <= op.most_cols
    )


def _argument(draw: Random, kind: str, kinds: dict[str, str]) -> str:
    """A value of the kind; the later ones are drawn more often."""
    names = [name for name, k in kinds.items() if k == kind]
    if not names:
        return ""  # whatever the kind's default is
    return names[max(draw.randint(0, len(names) - 1), draw.randint(0, len(names) - 1))]
