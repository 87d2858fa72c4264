"""Makes `torch.compile` suggest the right name for a misspelt option of mixorder.

Must not import Inductor: it is loaded while Inductor is loading.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from .wrapping import wrap


def wrap_apply_options(torch: ModuleType, misspelt: Callable[[str], str]) -> None:
    """Wrap the function that checks the options of `torch.compile`. Idempotent.

    `misspelt`: the message for an unknown option; empty for names that are not meant for mixorder.
    """

    def with_a_short_line(original: Callable[..., Any]) -> Callable[..., Any]:
        def apply_options(self: Any, options: dict[str, Any] | None) -> Any:
            try:
                return original(self, options)
            except RuntimeError as error:
                said = [line for name in options or () if (line := misspelt(name))]
                if not said:
                    raise
                raise RuntimeError("\n".join([*said, str(error)])) from None

        return apply_options

    wrap(torch, "_TorchCompileInductorWrapper.apply_options", with_a_short_line)
