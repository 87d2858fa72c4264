"""What the text of Inductor's output code says of its kernels: sizes, loads, stores, arguments.

Read by its form, not imported: files of results have it for fitting a model of Inductor's kernels later.
"""

from __future__ import annotations

import ast
import contextlib
import re
from typing import Any

KERNEL = re.compile(r"^((?:#[^\n]*\n)*)(triton_\w+) = async_compile\.triton\('\2', '''(.*?)'''", re.M | re.S)
_HEURISTIC = re.compile(r"@triton_heuristics\.(\w+)\(")
_CALL = re.compile(r"^\s*(\w+)\.run\((.*?), stream=\w+\)", re.M)
_BUFFER = re.compile(r"(\w+) = empty_strided_\w+\((\(.*?\)), (\(.*?\)), torch\.(\w+)\)")
_INPUT = re.compile(r"assert_size_stride\((\w+), (\(.*?\)), (\(.*?\))[,)]")
_KEPT = ("num_load", "num_store", "num_reduction", "atomic_add_found", "tiling_scores")
_SIGNATURE = re.compile(r"'signature': (\{.*?\})")


def described(text: str) -> dict[str, Any]:
    """Of one graph's output code. `kernels`: by name, the heuristic, size hints, the hint of a reduction's
    direction, the arguments' types, numbers of loads, stores and reductions. `calls`: each launch in order,
    a kernel's name and its arguments as written. `sizes`: by name, sizes and strides in elements of the
    buffers and inputs, and a buffer's dtype. Parts that are not found are left out."""
    return {
        "kernels": {name: _kernel(source) for _, name, source in KERNEL.findall(text)},
        "calls": [[name, args] for name, args in _CALL.findall(text)],
        "sizes": {
            **{name: [size, stride] for name, size, stride in _INPUT.findall(text)},
            **{name: [size, stride, dtype] for name, size, stride, dtype in _BUFFER.findall(text)},
        },
    }


def _kernel(source: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if heuristic := _HEURISTIC.search(source):
        found["heuristic"] = heuristic[1]
    if sizes := re.search(r"size_hints=(\{.*?\})", source):
        found["size_hints"] = _literal(sizes[1])
    if hint := re.search(r"reduction_hint=ReductionHint\.(\w+)", source):
        found["hint"] = hint[1]
    if signature := _SIGNATURE.search(source):
        found["signature"] = _literal(signature[1])
    for name in _KEPT:
        if value := re.search(rf"'{name}': (\{{.*?\}}|[\w.]+)", source):
            found[name] = _literal(value[1])
    return found


def _literal(text: str) -> Any:
    with contextlib.suppress(ValueError, SyntaxError):
        return ast.literal_eval(text)
    return text
