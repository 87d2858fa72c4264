"""The kinds of reduction: all that the stages need to know about one, as data.

A new kind needs one `ReductionKind` in `KINDS`, and its ATen overload in `REDUCTIONS` of `region/nodes.py`.
No other module compares kinds: they read the fields.
"""

from __future__ import annotations

import dataclasses
import math

import torch

from .dtypes import BOOL, INTEGERS, computed_in


@dataclasses.dataclass(frozen=True)
class ReductionKind:
    """An associative and commutative operation with an identity.

    `combine`: Inductor's op for two values. `tile`: the Triton function that reduces one dim of a tile; it
    propagates NaN as eager does. `identity`: for floating-point numbers and bools.

    `ptx` and `numpy`: the PTX instruction and the NumPy function that combine two float32. A cooperative
    kernel combines its parts with the instruction; the interpreter uses the NumPy function instead. Without
    them, a row that is too wide for one program is declined.
    """

    name: str
    combine: str
    tile: str
    identity: float
    ptx: str | None = None
    numpy: str | None = None
    on_floats: bool = True  # has a meaning for floating-point numbers
    on_bools: bool = False  # has a meaning for bools, as for the integers 0 and 1
    of_truth: bool = False  # casts each element to bool first, whatever its dtype
    widens_integers: bool = False  # combines narrow integers in 32 bits: the stored bits are the same
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

    def element_dtype(self, stored: torch.dtype) -> torch.dtype:
        """What an element is first cast to, where the graph states the result as `stored`."""
        return BOOL if self.of_truth else stored

    def accumulates_in(self, stored: torch.dtype) -> torch.dtype:
        """The accumulator's dtype for a result that the graph states as `stored`.

        Raises ValueError if the operation has no meaning in `stored`.
        """
        if self.of_truth:
            return BOOL
        if self.on_floats and stored.is_floating_point and stored.itemsize >= 2:
            return computed_in(stored)
        if self.on_bools and stored == BOOL:
            return torch.int32
        if stored not in INTEGERS:
            raise ValueError(f"no {self.name} in {stored}")
        return torch.int32 if self.widens_integers and stored.itemsize < 4 else stored

    def identity_in(self, dtype: torch.dtype) -> float:
        """The identity as a value of `dtype`: a float, a bool or an int."""
        if dtype.is_floating_point or dtype == BOOL:
            return self.identity
        if not math.isinf(self.identity):
            return int(self.identity)
        limits = torch.iinfo(dtype)
        return limits.min if self.identity < 0 else limits.max


SUM = ReductionKind(
    name="sum",
    combine="add",
    tile="tl.sum",
    identity=0.0,
    ptx="add.f32",
    numpy="add",
    widens_integers=True,
    compensable=True,
)
PROD = ReductionKind(
    name="prod",
    combine="mul",
    tile="triton_helpers.prod",
    identity=1.0,
    ptx="mul.f32",
    numpy="multiply",
    widens_integers=True,
)
AMAX = ReductionKind(
    name="amax",
    combine="maximum",
    tile="triton_helpers.max2",
    identity=float("-inf"),
    ptx="max.NaN.f32",
    selects=True,
    numpy="maximum",
    on_bools=True,
)
AMIN = ReductionKind(
    name="amin",
    combine="minimum",
    tile="triton_helpers.min2",
    identity=float("inf"),
    ptx="min.NaN.f32",
    selects=True,
    numpy="minimum",
    on_bools=True,
)
ANY = ReductionKind(
    name="any",
    combine="logical_or",
    tile="triton_helpers.any",
    identity=False,
    of_truth=True,
)
XOR = ReductionKind(
    name="xor",
    combine="bitwise_xor",
    tile="tl.xor_sum",
    identity=0,
    on_floats=False,
)

KINDS = {kind.name: kind for kind in (SUM, PROD, AMAX, AMIN, ANY, XOR)}
