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
    extents = {workspace.result: workspace.tile for workspace in plan.results}
    kernels = {f"sums{i}": kernel for i, kernel in enumerate(sums)}
    for i, nest in enumerate(nests):
        (store,) = (s for s in nest.body if isinstance(s, Store))
        walk = in_tiles([int(axis.size) for axis in nest.loops], extents[store.buffer])
        kernels[f"copy{i}"] = copy_function(program, nest, Plan(walk, Launch(WARPS)), f"copy{i}")
    functions, calls, names, written, first = "", "", dict[str, None](), list[str](), 0
    for function, kernel in kernels.items():
        pointers = ", ".join(program.buffer(name).pointer for name in kernel.buffers)
        after = first + int(kernel.grid)
        calls += f"    {'elif' if first else 'if'} program < {after}:\n"
        calls += f"        {function}({pointers}, program - {first})\n"
        functions += f"{kernel.text}\n\n"
        names |= dict.fromkeys(kernel.buffers)
        written += kernel.written
        first = after
    pointers = ", ".join(program.buffer(name).pointer for name in names)
    dependent = plan.launch.dependent
    number = awaited(PROGRAM) if dependent else PROGRAM
    main = f"@triton.jit\ndef KERNEL({pointers}):\n    program = {number}\n{calls}"
    name, text = named(f"triton_mixorder_{label}_place", functions + main)
    config = LaunchConfig((), max(kernel.config.num_warps for kernel in kernels.values()), 1)
    return KernelSource(name, text, tuple(names), tuple(written), (), first, config, dependent)
