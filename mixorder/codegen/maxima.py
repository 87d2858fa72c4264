"""Maxima and minima of float32 in one instruction, which propagates NaN as eager does.

Inductor's functions compare an element twice and select it: four instructions or five. From compute
capability 8.0 on, GPUs have one; for others Triton writes the comparisons.
"""

from __future__ import annotations

import torch

from ..inductor.printing import AT_ONCE, COMPARED
from ..ir.reductions import ReductionKind

_HELPER = """\
@triton.jit
def {}_or_nan(a, b):
    return {}


"""


class Maxima:
    """Those of one kernel. `functions`: the text of what the kernel calls for them. `compared`: they are
    comparisons, where the instruction is not to be used."""

    def __init__(self) -> None:
        self.compared = False
        self._functions: dict[str, str] = {}

    @property
    def functions(self) -> str:
        return "".join(self._functions.values())

    def has(self, kind: ReductionKind, dtype: torch.dtype) -> bool:
        """Whether a reduction in a dtype is a maximum or a minimum of float32."""
        return kind.selects and dtype == torch.float32

    def of(self, kind: ReductionKind, left: str, right: str) -> str:
        """The text of the larger one of two values, or the smaller one."""
        return (COMPARED if self.compared else AT_ONCE)[kind.combine].format(left, right)

    def along(self, kind: ReductionKind, value: str, axis: int) -> str:
        """The text of a tile that is reduced along one of its dims, which it loses."""
        self._functions[kind.combine] = _HELPER.format(kind.combine, self.of(kind, "a", "b"))
        return f"tl.reduce({value}, {axis}, {kind.combine}_or_nan)"
