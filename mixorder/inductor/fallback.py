"""Compile a graph once more, without mixorder, where Inductor cannot compile what mixorder made of it.

A region takes nodes out of what Inductor would have fused, and fixes the strides of what it reads. That can
bring an error of Inductor's own to light, such as those of its split scans (torch 2.11 to 2.13: "Unexpected
tiling" for a `cumsum` of what is transposed). Nobody's compile is to fail because of that.
"""

from __future__ import annotations

import copy
import warnings

from torch.fx import GraphModule

from ..record import RegionRecord
from ..report import given_back


class Untouched:
    """The graphs of a module and of those in it, as they are now. Passes change them in place."""

    def __init__(self, module: GraphModule) -> None:
        modules = [m for m in module.modules() if isinstance(m, GraphModule)]
        self.graphs = [(m, copy.deepcopy(m.graph)) for m in modules]

    def restore(self) -> None:
        for module, graph in self.graphs:
            module.graph = graph


def give_back(untouched: Untouched, regions: list[RegionRecord], error: Exception) -> None:
    """Take `regions` back from a compile that ended with `error`, and say so."""
    untouched.restore()
    given_back(regions)
    fused = "a region" if len(regions) == 1 else f"{len(regions)} regions"
    told = " ".join(f"{type(error).__name__}: {error}".split())[:300]
    warnings.warn(
        f"mixorder fused {fused} of a graph that Inductor could then not compile; it is compiled without. "
        f"{told}\nMIXORDER_STRICT=1 raises the error instead.",
        stacklevel=2,
    )
