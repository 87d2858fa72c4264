"""The result of codegen: kernel text, and what its launch needs."""

from __future__ import annotations

import dataclasses

import sympy

from ..inductor.kernels import IMPORTS


@dataclasses.dataclass(frozen=True)
class LaunchConfig:
    """One setting of a kernel's constexpr parameters, with Triton's launch options."""

    constants: tuple[tuple[str, int], ...]
    num_warps: int
    num_stages: int


@dataclasses.dataclass(frozen=True)
class KernelSource:
    """`text` defines the kernel `name`; it takes `buffers` (IR names), `sizes`, and the config's constants.

    `written` are the buffers that it writes; `sizes` are symbolic sizes, passed as integers; `grid` is its
    number of programs, in which sizes may be symbolic, `config` how it is launched. `waits`: it waits by
    itself for the kernel before it, and may be launched before that has ended
    (`codegen.programmatic_launch`). `exact`: no product is contracted with the sum that takes it, so that
    each rounds as in eager. `registers`: the most that a thread gets; 0 where the compiler decides.
    """

    name: str
    text: str
    buffers: tuple[str, ...]
    written: tuple[str, ...]
    sizes: tuple[str, ...]
    grid: int | sympy.Expr
    config: LaunchConfig
    waits: bool = False
    exact: bool = False
    registers: int = 0

    @property
    def module_text(self) -> str:
        """The text of a module that defines the kernel."""
        return f"{IMPORTS}\n\n{self.text}"
