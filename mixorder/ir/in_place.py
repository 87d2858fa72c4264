"""Whether an output may be written in the memory of an input. Reads a merged program, changes nothing."""

from __future__ import annotations

import sympy

from .program import Buffer, Load, LoopProgram, Store, closure


def why_not(program: LoopProgram, output: Buffer, source: Buffer) -> str | None:
    """Why `output` may not be stored in the memory of `source`; None if it may.

    It may if the program writes each element after the last read of that element. Kernels of nests before
    have ended then; the second nest writes only what is small.
    """
    written = {s.buffer: n for n in program.nests for s in n.body if isinstance(s, Store)}
    if output.dtype != source.dtype:
        return "another dtype"
    if (output.shape, output.stride) != (source.shape, source.stride):
        if not (_contiguous(output) and _contiguous(source)):
            return "other strides"
        if not _same(output.numel, source.numel):
            return "another size"
    main = written.get(output.name)
    if main is None or main in program.nests[1:2]:
        return "no kernel over all elements writes the output"
    later = program.nests[program.nests.index(main) + 1 :]
    if any(isinstance(s, Load) and s.buffer == source.name for n in later for s in n.statements):
        return "a later kernel reads the input"
    store = next(s for s in main.body if isinstance(s, Store) and s.buffer == output.name)
    loads = [s for s in main.statements if isinstance(s, Load) and s.buffer == source.name]
    if any(load.predicate is not None or not _same(load.index, store.index) for load in loads):
        return "an element is read at another place than it is written"
    # In any of Triton's layouts, every thread loads what its stored value depends on before it stores.
    if not set(loads).issubset(closure(main.statements, [store])):
        return "the input is read for something else"
    return None


def _contiguous(buffer: Buffer) -> bool:
    stride = sympy.S.One
    for n, s in zip(reversed(buffer.shape), reversed(buffer.stride), strict=True):
        if n != 1 and not _same(s, stride):
            return False
        stride = stride * n
    return True


def _same(a: sympy.Expr, b: sympy.Expr) -> bool:
    return sympy.expand(a - b) == 0
