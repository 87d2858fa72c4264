"""The kernel that puts staged results in place: programs of one launch copy tiles of all of them, and others
add up partial sums, if there are any.

A tile is read along one dim and written along the other.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..ir.program import LoopProgram, Nest, Store
from ..schedule.plan import Launch, Plan, in_tiles
from .kernel_text import named
from .programmatic_launch import PROGRAM, awaited
from .source import KernelSource, LaunchConfig
from .tile import copy_function

WARPS = 4


def placing_kernel(
    program: LoopProgram,
    nests: Sequence[Nest],
    sums: Sequence[KernelSource],
    plan: Plan,
    label: str,
) -> KernelSource:
    """The kernel of the nests that `transform.staged` has added, and of the finalisation, if there is one,
    which then takes its program's number as `program`."""
    functions, calls, names, written, first = "", "", dict[str, None](), list[str](), 0
    extents = {workspace.result: workspace.tile for workspace in plan.results}
    kernels = [
        (f"sums{i}", f"{kernel.text}\n\n", kernel.buffers, kernel.written, kernel.grid)
        for i, kernel in enumerate(sums)
    ]
    for i, nest in enumerate(nests):
        (store,) = (s for s in nest.body if isinstance(s, Store))
        copy_plan = Plan(
            in_tiles([int(axis.size) for axis in nest.loops], extents[store.buffer]), Launch(WARPS)
        )
        text, read, tiles = copy_function(program, nest, copy_plan, f"copy{i}")
        kernels.append((f"copy{i}", text, tuple(read), (store.buffer,), tiles))
    for function, text, buffers, stored, programs in kernels:
        pointers = ", ".join(program.buffer(name).pointer for name in buffers)
        calls += f"    {'elif' if first else 'if'} program < {first + int(programs)}:\n"
        calls += f"        {function}({pointers}, program - {first})\n"
        functions += text
        names |= dict.fromkeys(buffers)
        written += stored
        first += int(programs)
    pointers = ", ".join(program.buffer(name).pointer for name in names)
    dependent = plan.launch.dependent
    number = awaited(PROGRAM) if dependent else PROGRAM
    main = f"@triton.jit\ndef KERNEL({pointers}):\n    program = {number}\n{calls}"
    name, text = named(f"triton_mixorder_{label}_place", functions + main)
    config = LaunchConfig((), max([WARPS, *(kernel.config.num_warps for kernel in sums)]), 1)
    return KernelSource(name, text, tuple(names), tuple(written), (), first, config, dependent)
