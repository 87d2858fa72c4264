"""How many graph breaks dynamo makes while a model runs."""

from __future__ import annotations

from torch.fx import GraphModule

from ..inductor.telemetry import graph_breaks


class Breaks:
    """Counts graph breaks from its creation on.

    Torch's counter has what dynamo cannot capture, but no branches on a tensor's value. Each graph has the
    reason for its end, but a break may come before the first graph. `count` joins the two.
    """

    def __init__(self) -> None:
        self.before = graph_breaks()
        self.branches = self.others = 0

    def add(self, graph: GraphModule) -> None:
        """Count the break that ended a graph, if one did."""
        reason = getattr(graph, "compile_subgraph_reason", None)
        if reason is not None and reason.graph_break:
            branch = reason.reason.startswith("generic_jump")
            self.branches += branch
            self.others += not branch

    def count(self) -> int:
        return self.branches + max(self.others, graph_breaks() - self.before)
