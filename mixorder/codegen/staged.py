"""The kernel that puts staged results in place: programs of one launch copy tiles of all of them.

A tile is read along one dim and written along the other.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..ir.program import LoopProgram, Nest, Store
from ..schedule.schedule import Schedule, Tile, next_power_of_2
from .programmatic_launch import PROGRAM, awaited
from .source import KernelSource, LaunchConfig
from .tile import copy_function
from .writer import named

# Elements of a tile along the dim that is contiguous in the graph, and along the other, by whether they have
# one byte. H200, four results of 2 MB, in bytes: 64x64 9.4 us, 128x64 8.8, 128x128 8.6; two in float32, 32x32
# 6.1 and others 6.1 to 6.8.
BYTES, WIDER = (128, 64), (32, 32)
WARPS = 4


def placing_kernel(
    program: LoopProgram, nests: Sequence[Nest], schedule: Schedule, label: str
) -> KernelSource:
    """The kernel of the nests that `transform.staged` has added."""
    functions, calls, names, written, first = "", "", list[str](), list[str](), 0
    for i, nest in enumerate(nests):
        (store,) = (s for s in nest.body if isinstance(s, Store))
        text, buffers, programs = copy_function(program, nest, _schedule(program, nest, store), i)
        functions += text
        pointers = ", ".join(program.buffer(name).pointer for name in buffers)
        calls += f"    {'elif' if i else 'if'} program < {first + programs}:\n"
        calls += f"        copy{i}({pointers}, program - {first})\n"
        names += buffers
        written.append(store.buffer)
        first += programs
    pointers = ", ".join(program.buffer(name).pointer for name in names)
    number = awaited(PROGRAM) if schedule.overlap else PROGRAM
    main = f"@triton.jit\ndef KERNEL({pointers}):\n    program = {number}\n{calls}"
    name, text = named(f"triton_mixorder_{label}_place", functions + main)
    config = LaunchConfig((), WARPS, 1)
    waits = schedule.overlap
    return KernelSource(name, text, tuple(names), tuple(written), (), first, config, waits)


def _schedule(program: LoopProgram, nest: Nest, store: Store) -> Schedule:
    """A tile of a copy."""
    item = program.buffer(store.buffer).dtype.itemsize
    sides = BYTES if item == 1 else WIDER
    pairs = zip(sides, nest.loops, strict=True)
    extents = tuple(min(side, next_power_of_2(int(axis.size))) for side, axis in pairs)
    return Schedule(Tile(1, WARPS, 1), extents[0] * extents[1], 1, 1, 1, extents=extents)
