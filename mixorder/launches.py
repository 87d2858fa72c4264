"""How Inductor launches our kernels: early, those that wait for the one before them themselves.

Inductor has the setting for kernels that it writes itself (2.11 to 2.15: `triton_meta["launch_pdl"]`), and no
way to give it for others. So it is written into their definitions, which are text.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from types import ModuleType
from typing import Any

from .analysis import PREFIX
from .codegen.dependent import waits


def early(module: ModuleType) -> None:
    """Wrap what writes a kernel's definition, of `torch._inductor.codegen.wrapper`. Idempotent."""
    writer = module.PythonWrapperCodegen
    if not getattr(writer.define_kernel, "_mixorder_wrapper", False):
        writer.define_kernel = _launched_early(writer.define_kernel)


def _launched_early(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def define_kernel(self: Any, kernel_name: str, kernel_body: str, *args: Any, **kwargs: Any) -> Any:
        if kernel_name.startswith(PREFIX) and waits(kernel_body):
            kernel_body = re.sub(r"\btriton_meta=\{", r"\g<0>'launch_pdl': True, ", kernel_body, count=1)
        return original(self, kernel_name, kernel_body, *args, **kwargs)

    define_kernel._mixorder_wrapper = True  # type: ignore[attr-defined]
    return define_kernel
