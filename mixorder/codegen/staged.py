"""The kernel that puts staged results in place: programs of one launch copy tiles of all of them.

A tile is read along one dim and written along the other, by runs of `RUN` bytes or more.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..ir.program import LoopProgram, Nest, Store
from ..schedule.schedule import Schedule, Tile, next_power_of_2
from .source import KernelSource, LaunchConfig
from .tile import copy_function
from .writer import named

RUN = 64  # bytes: two sectors
WIDEST = 32  # elements along each dim of a tile, of more than one byte each
WARPS = 4


def placing_kernel(program: LoopProgram, nests: Sequence[Nest], label: str) -> KernelSource:
    """The kernel of the nests that `transform.staged` has added."""
    functions, calls, names, written, first = "", "", list[str](), list[str](), 0
    for number, nest in enumerate(nests):
        (store,) = (s for s in nest.body if isinstance(s, Store))
        text, buffers, programs = copy_function(program, nest, _schedule(program, nest, store), number)
        functions += text
        pointers = ", ".join(program.buffer(name).pointer for name in buffers)
        calls += f"    {'elif' if number else 'if'} program < {first + programs}:\n"
        calls += f"        copy{number}({pointers}, program - {first})\n"
        names += buffers
        written.append(store.buffer)
        first += programs
    pointers = ", ".join(program.buffer(name).pointer for name in names)
    main = f"@triton.jit\ndef KERNEL({pointers}):\n    program = tl.program_id(0)\n{calls}"
    name, text = named(f"triton_mixorder_{label}_place", functions + main)
    config = LaunchConfig((), WARPS, 1)
    return KernelSource(name, text, tuple(names), tuple(written), (), first, config)


def _schedule(program: LoopProgram, nest: Nest, store: Store) -> Schedule:
    """A tile of a copy."""
    item = program.buffer(store.buffer).dtype.itemsize
    side = RUN if item == 1 else WIDEST
    extents = tuple(min(side, next_power_of_2(int(axis.size))) for axis in nest.loops)
    return Schedule(Tile(1, WARPS, 1), extents[0] * extents[1], 1, 1, 1, extents=extents)
