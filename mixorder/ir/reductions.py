"""The kinds of reduction: all that the stages need to know about one, as data.

A new kind needs one `ReductionKind` in `KINDS`, and its ATen overload in `REDUCTIONS` of `region/nodes.py`.
No other module compares kinds: they read the fields.
"""

from __future__ import annotations

import dataclasses

import torch

from .dtypes import INTEGERS, computed_in


@dataclasses.dataclass(frozen=True)
class ReductionKind:
    """An associative and commutative operation with an identity.

    `combine`: Inductor's op for two values. `tile`: the Triton function that reduces one dim of a tile; it
    propagates NaN as eager does.

    `ptx`: the PTX instruction that combines two float32. A cooperative kernel combines its parts with it; the
    interpreter uses NumPy's function instead, which has the name of Inductor's op. Without it, a row that is
    too wide for one program is declined.
    """

    name: str
    combine: str
    tile: str
    identity: float
    ptx: str | None = None
    on_floats: bool = True  # takes floating-point numbers; otherwise integers
    selects: bool = False  # gives one of its elements
    compensable: bool = False  # an addition, whose rounding errors can be compensated

    @property
    def can_be_exchanged(self) -> bool:
        """Whether the programs of a cooperative kernel can combine their parts of it, in float32."""
        return self.ptx is not None

    @property
    def ignores_zero(self) -> bool:
        """Whether combining with zero changes nothing."""
        return self.identity == 0

    def accumulates_in(self, stored: torch.dtype) -> torch.dtype:
        """The accumulator's dtype for a result that the graph states as `stored`.

        Raises ValueError if the operation does not take it.
        """
        floats = stored.is_floating_point and stored.itemsize >= 2
        if not (floats if self.on_floats else stored in INTEGERS):
            raise ValueError(f"no {self.name} in {stored}")
        return computed_in(stored)


SUM = ReductionKind(
    name="sum",
    combine="add",
    tile="tl.sum",
    identity=0.0,
    ptx="add.f32",
    compensable=True,
)
AMAX = ReductionKind(
    name="amax",
    combine="maximum",
    tile="triton_helpers.max2",
    identity=float("-inf"),
    ptx="max.NaN.f32",
    selects=True,
)
AMIN = ReductionKind(
    name="amin",
    combine="minimum",
    tile="triton_helpers.min2",
    identity=float("inf"),
    ptx="min.NaN.f32",
    selects=True,
)
XOR = ReductionKind(
    name="xor",
    combine="bitwise_xor",
    tile="tl.xor_sum",
    identity=0,
    on_floats=False,
)

KINDS = {kind.name: kind for kind in (SUM, AMAX, AMIN, XOR)}
