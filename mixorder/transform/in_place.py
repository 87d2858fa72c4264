"""Let an output of the main kernel reuse the memory of an input that is not read afterwards.

Takes a merged program and the names of such inputs. Returns one whose outputs name, in `Buffer.over`, the
input whose memory they reuse, so that one tensor less is in memory at once. `ir.in_place` has the conditions.
A kernel that loads in another order than its program states, such as one that reads a row again after writing
it, skips this stage.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Collection

from ..ir.in_place import why_not
from ..ir.program import BufferRole, LoopProgram


def reuse_in_place(
    program: LoopProgram, dead: Collection[str], excluded: Collection[str] = ()
) -> LoopProgram:
    """Give each output but those in `excluded` the memory of the first of the `dead` inputs that suits it and
    is not yet reused."""
    over = _over(program, tuple(dead), tuple(excluded))
    buffers = tuple(dataclasses.replace(b, over=over.get(b.name)) for b in program.buffers)
    return dataclasses.replace(program, buffers=buffers)


@functools.lru_cache(maxsize=256)
def _over(program: LoopProgram, dead: tuple[str, ...], excluded: tuple[str, ...]) -> dict[str, str]:
    """The outputs, by name, and the inputs whose memory they reuse: the same for all regions with equal
    loops, but for the values of constants, which do not matter here."""
    over: dict[str, str] = {}
    for output in (b for b in program.role(BufferRole.OUTPUT) if b.name not in excluded):
        for source in program.role(BufferRole.INPUT):
            free = source.name in dead and source.name not in over.values()
            if free and why_not(program, output, source) is None:
                over[output.name] = source.name
                break
    return over
