"""Whether a region is worth a kernel of its own. Plain numbers in, `Decline` out."""

from __future__ import annotations

from ..errors import Decline, DeclineReason


def gate(numel: int, min_numel: int) -> None:
    """Raise `Decline` for a space of fewer than `min_numel` elements: there, launches decide, not bytes."""
    if numel < min_numel:
        raise Decline(DeclineReason.TOO_SMALL, f"{numel} elements, fewer than {min_numel}")
