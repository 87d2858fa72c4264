"""Let an output of the main kernel take the place of an input that nobody reads afterwards.

Takes a merged program and the names of those inputs; gives one whose outputs say, in `Buffer.over`, which
input they are written over, so that a tensor less is in memory at once. `ir.in_place` says what must hold. A
kernel that runs loads in another order than its program states them, such as one that reads a row again after
writing it, leaves this stage out.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection

from ..ir.in_place import why_not
from ..ir.program import BufferRole, LoopProgram


def reuse_in_place(program: LoopProgram, dead: Collection[str]) -> LoopProgram:
    """Each output over the first of the `dead` inputs that can take it, and that no other output takes."""
    over: dict[str, str] = {}
    for output in program.role(BufferRole.OUTPUT):
        for source in program.role(BufferRole.INPUT):
            free = source.name in dead and source.name not in over.values()
            if free and why_not(program, output, source) is None:
                over[output.name] = source.name
                break
    buffers = tuple(dataclasses.replace(b, over=over.get(b.name)) for b in program.buffers)
    return dataclasses.replace(program, buffers=buffers)
