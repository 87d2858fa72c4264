"""Inline PTX in a kernel's text, marked so that the interpreter recognises it.

The mark is the name of an unused register. It is not a comment, because Inductor's C++ wrapper puts a
kernel's text into a comment.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence
from typing import Any

_MARK = "mixorder_"


def inline(
    mark: str,
    body: str,
    constraints: str,
    args: Sequence[str],
    dtype: str,
    pack: int = 1,
    pure: bool = True,
) -> str:
    """Triton text: the results of `body`. `mark` is letters, digits and underscores. `pack`: elements per
    register; 0 would end the process (triton 3.6 and 3.7). `pure`: the compiler may move it, leave it out and
    run it twice; otherwise it stays between what is loaded and stored before and after."""
    assert pack > 0, (mark, pack)
    text = f"{{ .reg .b32 {_MARK}{mark}; {body} }}"
    return (
        f'tl.inline_asm_elementwise("{text}", "{constraints}", [{", ".join(args)}], dtype={dtype}, '
        f"is_pure={pure}, pack={pack})"
    )


def mark_of(text: str) -> str | None:
    """The mark of assembly text; None if it has none."""
    match = re.match(rf"{{ \.reg \.b32 {_MARK}(\w+);", text)
    return match and match[1]


@dataclasses.dataclass(frozen=True)
class Function:
    """Assembly that computes a float32 of others, element by element.

    `body`: the PTX. `meaning`: what it gives, as a function of tensors. `pack`: elements of one call.
    """

    body: str
    meaning: Callable[..., Any]
    pack: int = 1

    def called(self, mark: str, *args: object) -> str:
        """Triton text: a call, of tensors and numbers."""
        texts = [
            f"tl.full([], {arg}, tl.float32)" if isinstance(arg, int | float) else str(arg) for arg in args
        ]
        constraints = ",".join(["=f"] * self.pack + ["f"] * self.pack * len(args))
        return inline(mark, self.body, constraints, texts, "tl.float32", self.pack)
