"""Provenance: the modules and source lines of the user's program that nodes come from.

Reads the metadata that torch stores on nodes, gives plain data. Backward nodes have the modules of
the forward node that they belong to.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterable
from pathlib import Path

import torch
from torch.fx import Node

from ..errors import Decline
from .region import Region
from .transposed import traced_shape

_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>\S+)\n\s*(?P<code>[^\n]*)')
_ROOT = re.compile(r"^L\[['\"]\w+['\"]\]\.?")
_ITEM = re.compile(r"(?:\.?_modules)?\[['\"]?([^'\"\]]+)['\"]?\]")
_TORCH = str(Path(torch.__file__).parent)


@dataclasses.dataclass(frozen=True)
class Provenance:
    """Where some nodes come from.

    `modules`: path below the compiled module (empty for itself) and class of each innermost module, in the
    nodes' order.
    `lines`: `file:line in function: code` of the user's frame that called each.
    `numel`: elements of the largest tensor that the nodes read; 0 if that is unknown.
    """

    modules: tuple[tuple[str, str], ...] = ()
    lines: tuple[str, ...] = ()
    numel: int = 0

    def __str__(self) -> str:
        """The modules' paths, or the first source line where there is no module."""
        names = [path or kind for path, kind in self.modules]
        return ", ".join(names) or next(iter(self.lines), "unknown")


def provenance_of(nodes: Iterable[Node]) -> Provenance:
    """The modules and source lines of some nodes. Nodes without torch's metadata add nothing."""
    modules: dict[tuple[str, str], None] = {}
    lines: dict[str, None] = {}
    numel = 0
    for node in nodes:
        shapes = filter(None, map(traced_shape, node.all_input_nodes))
        numel = max(numel, *map(math.prod, shapes), 0)
        stack = node.meta.get("fwd_nn_module_stack") or node.meta.get("nn_module_stack")
        if stack:
            path, kind = list(stack.values())[-1]
            modules[_plain(path), kind if isinstance(kind, str) else kind.__name__] = None
        if line := _users_frame(node.meta.get("stack_trace") or ""):
            lines[line] = None
    return Provenance(tuple(modules), tuple(lines), numel)


def _plain(path: str) -> str:
    """`L['self'].blocks.0.norm`, or `L['self']._modules['blocks']...`, as `named_modules` has it."""
    return _ITEM.sub(r".\1", _ROOT.sub("", path)).lstrip(".")


def _users_frame(trace: str) -> str:
    """The innermost frame that is not in torch; the innermost one if all are."""
    frames = list(_FRAME.finditer(trace))
    user_frames = [f for f in frames if not f["file"].startswith(_TORCH)] or frames
    if not user_frames:
        return ""
    frame = user_frames[-1]
    return f"{frame['file']}:{frame['line']} in {frame['function']}: {frame['code'].strip()}"


def about(decline: Decline, nodes: Iterable[Node]) -> Decline:
    """A decline that says where the nodes come from that it is about."""
    decline.provenance = provenance_of(nodes)
    return decline


def located(decline: Decline, candidate: Region | Decline | None) -> Decline:
    """A decline that says where the reductions of the region come from that it is about."""
    return about(decline, candidate.named_after) if isinstance(candidate, Region) else decline


def label(region: Region) -> str:
    """What the kernels' names say was fused: the ATen ops that the reductions or, without any, the results
    come from."""
    unknown = "sum" if region.outer else "copy"
    ops = dict.fromkeys(
        str(n.meta["original_aten"]).split(".")[1] if "original_aten" in n.meta else unknown
        for n in region.named_after
    )
    return re.sub(r"\W+", "_", "_".join(ops))[:64]
