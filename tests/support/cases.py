"""The family: norms in their usual forms, operators around them, and pairs that are no norms.

Used by the interpreter's tests, the tests on a GPU, and `tools/family.py`; a key is a row of its table.
"""

from __future__ import annotations

from .around import AROUND, OTHERS
from .case import Case, Compile, Example, Fused, found_in, relative_errors
from .norms import BIT_LINEAR, CHECKPOINTED, NORMS, Checkpointed
from .over_reduction_groups import OVER_REDUCTION_GROUPS

GROUPS: dict[str, dict[str, Case]] = {
    "norms": NORMS,
    "around a norm": AROUND,
    "BitLinear": BIT_LINEAR,
    "not norms": OTHERS,
    "checkpointed": CHECKPOINTED,
    "over reduction groups": OVER_REDUCTION_GROUPS,
}
CASES: dict[str, Case] = {name: case for group in GROUPS.values() for name, case in group.items()}

__all__ = [
    "CASES",
    "GROUPS",
    "Case",
    "Checkpointed",
    "Compile",
    "Example",
    "Fused",
    "found_in",
    "relative_errors",
]
