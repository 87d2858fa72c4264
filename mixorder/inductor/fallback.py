"""A graph as it was before mixorder's pass, to compile if Inductor cannot compile the rewritten one.

A region changes what Inductor fuses around it, and fixes the strides of its inputs. That can expose a bug of
Inductor, such as those of its split scans (torch 2.11 to 2.13: "Unexpected tiling" for a `cumsum` of a
transposed tensor). Such a bug must not fail the compile.
"""

from __future__ import annotations

import copy

from torch.fx import GraphModule


class Untouched:
    """Copies of the graphs of a module and its submodules. Passes change the originals in place."""

    def __init__(self, module: GraphModule) -> None:
        modules = [m for m in module.modules() if isinstance(m, GraphModule)]
        self.graphs = [(m, copy.deepcopy(m.graph)) for m in modules]

    def restore(self) -> None:
        for module, graph in self.graphs:
            module.graph = graph
