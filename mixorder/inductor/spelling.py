"""Says which option was meant, where `torch.compile` is given one of mixorder's that there is not.

In: torch's module and names of options. Must not import Inductor: it is loaded while Inductor is loading.
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Callable
from dataclasses import fields
from types import ModuleType
from typing import Any

from mixorder.options import Options, config_key


def misspelt(name: str) -> str:
    """What to say of an option that there is not, if it was meant to be one of ours; else nothing."""
    name = name.replace("-", "_")
    known = [config_key(f) for f in fields(Options)]
    if name in known or not name.startswith("mixorder"):
        return ""
    close = difflib.get_close_matches(name, known, 1)
    instead = f" Did you mean {close[0]!r}?" if close else ""
    return f"mixorder has no option {name!r}.{instead} Its options are {', '.join(known)}."


def wrap_apply_options(torch: ModuleType) -> None:
    """Wrap what checks the options of `torch.compile`; its message has the names of all. Idempotent."""
    owner = getattr(torch, "_TorchCompileInductorWrapper", None)
    original = getattr(owner, "apply_options", None)
    if original is None or getattr(original, "_mixorder_wrapper", False):
        return
    wrapper = functools.wraps(original)(_with_a_short_line(original))
    wrapper._mixorder_wrapper = True  # type: ignore[attr-defined]
    owner.apply_options = wrapper  # type: ignore[union-attr]


def _with_a_short_line(original: Callable[..., Any]) -> Callable[..., Any]:
    def apply_options(self: Any, options: dict[str, Any] | None) -> Any:
        try:
            return original(self, options)
        except RuntimeError as error:
            said = [line for name in options or () if (line := misspelt(name))]
            if not said:
                raise
            raise RuntimeError("\n".join([*said, str(error)])) from None

    return apply_options
