"""A graph as it was before our pass, to be compiled without it where Inductor cannot compile what it made.

A region takes nodes out of what Inductor would have fused, and fixes the strides of what it reads. That can
bring an error of Inductor's own to light, such as those of its split scans (torch 2.11 to 2.13: "Unexpected
tiling" for a `cumsum` of what is transposed). Nobody's compile is to fail because of that.
"""

from __future__ import annotations

import copy

from torch.fx import GraphModule


class Untouched:
    """The graphs of a module and of those in it, as they are now. Passes change them in place."""

    def __init__(self, module: GraphModule) -> None:
        modules = [m for m in module.modules() if isinstance(m, GraphModule)]
        self.graphs = [(m, copy.deepcopy(m.graph)) for m in modules]

    def restore(self) -> None:
        for module, graph in self.graphs:
            module.graph = graph
