"""How the programs that share a row exchange their parts of its reductions: PTX, and its meaning in NumPy.

A row has a record of 32-bit slots in the mailbox, one per reduction and part, which are `EMPTY` at first. A
program stores its slot, and later reads the others. A slot is written by one store, so no fence is needed.

A read waits behind all other loads that the program has in flight, so it has two steps: `peek` issues it one
tile early; `total` uses the result, and rereads while a slot is empty (H200, RMSNorm 16384x16384 bf16:
60% of the limit if it reads and waits at once, 91% if it reads one tile early).

Each lane of a warp reads one slot, and the warp combines them. Every lane gets the same total, in an order
that depends only on the number of parts. The compiler takes the assembly as pure, because torch's analysis of
the arguments that a kernel writes gives up at an `asm` with side effects.
"""

from __future__ import annotations

import dataclasses
import struct
from typing import Any

from ..ir.reductions import KINDS, ReductionKind
from ..transform.cooperative import EMPTY, slots_of
from .assembly import inline, mark_of

MAX_WORDS = 32  # slots of one read: one for each lane of a warp
POLLS = 1 << 14  # reads before a program gives up waiting, about a microsecond each


def word(value: str) -> str:
    """Triton text: what a slot has of a float32, which is never `EMPTY`: of every NaN, the same bits."""
    return f"tl.where({value} == {value}, {value}, float('nan')).to(tl.int32, bitcast=True)"


@dataclasses.dataclass(frozen=True)
class Record:
    """`values` reductions of one kind, each with `parts` slots; `lanes` slots are reserved for each."""

    kind: ReductionKind
    values: int
    parts: int

    @property
    def lanes(self) -> int:
        return slots_of(self.parts)

    def peek(self, pointer: str) -> str:
        """Triton text: issue the read of the record at `pointer`; gives what `total` takes as `seen`."""
        identity = struct.pack(">f", self.kind.identity).hex()
        body = f"{self._address(1)}mov.b32 $0, 0x{identity}; @q ld.relaxed.gpu.global.b32 $0, [a]; }}"
        return _asm("peek", self, body, "=r,l", [f"({pointer}).to(tl.int64)"], "tl.int32")

    def total(self, pointer: str, seen: str, polls: str) -> str:
        """Triton text: wait for the record, for `polls` reads at most. Gives a flag, 0 if a slot is still
        empty, and the reductions over all parts."""
        at = self.values + 1
        steps = [
            f"{{ .reg .pred p, m; .reg .b32 n, v, w; {self._address(at)[1:]}",
            f"mov.b32 v, ${at + 1}; mov.b32 n, ${at + 2}; ",
            f"again: setp.eq.s32 p, v, {EMPTY}; vote.sync.any.pred m, p, -1; selp.b32 $0, 0, 1, m; ",
            "setp.ne.and.u32 m, n, 0, m; @!m bra done; @q ld.relaxed.gpu.global.b32 v, [a]; ",
            "sub.u32 n, n, 1; bra again; done: ",
        ]
        step = self.lanes // 2
        while step:
            steps.append(f"shfl.sync.bfly.b32 w, v, {step}, 31, -1; {self.kind.ptx} v, v, w; ")
            step //= 2
        steps += [f"shfl.sync.idx.b32 ${i + 1}, v, {i * self.lanes}, 31, -1; " for i in range(self.values)]
        dtypes = f"(tl.int32{', tl.float32' * self.values})"
        constraints = f"=&r{',=&f' * self.values},l,r,r"
        args = [f"({pointer}).to(tl.int64)", seen, polls]
        return _asm("total", self, "".join(steps) + "}", constraints, args, dtypes)

    def _address(self, pointer: int) -> str:
        """PTX: `a`, the address of the lane's slot, and `q`, whether it has one."""
        return (
            "{ .reg .pred q; .reg .b32 l, k; .reg .b64 a; mov.u32 l, %laneid; "
            f"and.b32 k, l, {self.lanes - 1}; setp.lt.u32 q, k, {self.parts}; "
            f"setp.lt.and.u32 q, l, {self.values * self.lanes}, q; mad.wide.u32 a, l, 4, ${pointer}; "
        )


def carried(value: str, bits: int, dtype: str) -> str:
    """Triton text: a copy of `value`, of `bits` per element, that is a new value to Triton. Triton does not
    pipeline a loop in which an iteration passes on, unchanged, a value from the iteration before."""
    if bits == 64:
        return inline("carry", "mov.b64 $0, $1;", "=l,l", [value], dtype)
    return inline("carry", "mov.b32 $0, $1;", "=r,r", [value], dtype, pack=32 // bits)


def _asm(what: str, record: Record, body: str, constraints: str, args: list[str], dtype: str) -> str:
    mark = f"{what}_{record.kind.name}_{record.values}_{record.parts}"
    return inline(mark, body, constraints, args, dtype)


def interpreted(text: str, args: list[Any]) -> list[Any] | None:
    """What an `asm` of this module gives for NumPy arguments; None if it is not of this module."""
    import ctypes

    import numpy

    if (mark := mark_of(text)) is None:
        return None
    what, *of = mark.split("_")
    if what in ("carry", "pass"):
        return [args[0]]
    if what == "peek":
        return [numpy.full_like(args[0], EMPTY, dtype=numpy.int32)]
    kind = KINDS[of[0]]
    join, record = getattr(numpy, kind.combine), Record(kind, *map(int, of[1:]))
    size = record.values * record.lanes
    at = (ctypes.c_int32 * size).from_address(int(args[0].flat[0]))
    words = numpy.frombuffer(at, numpy.int32).reshape(record.values, record.lanes)[:, : record.parts]
    values: Any = numpy.full((record.values, record.lanes), kind.identity, numpy.float32)
    values[:, : record.parts] = words.view(numpy.float32)
    while values.shape[1] > 1:
        half = values.shape[1] // 2
        values = join(values[:, :half], values[:, half:])
    shape = args[0].shape
    ready = numpy.full(shape, int((words != EMPTY).all()), numpy.int32)
    return [ready, *(numpy.full(shape, v[0], numpy.float32) for v in values)]
