"""How many graph breaks dynamo makes while a model runs."""

from __future__ import annotations

from torch.fx import GraphModule

from ..inductor.telemetry import graph_breaks


class Breaks:
    """Counts from where it is made. Torch counts what it cannot capture, but no branch on a tensor's value;
    what ends a graph is known for every graph, but a break may come before there is one."""

    def __init__(self) -> None:
        self.before = graph_breaks()
        self.branches = self.others = 0

    def add(self, graph: GraphModule) -> None:
        """Note why dynamo has ended a graph."""
        reason = getattr(graph, "compile_subgraph_reason", None)
        if reason is not None and reason.graph_break:
            branch = reason.reason.startswith("generic_jump")
            self.branches += branch
            self.others += not branch

    def count(self) -> int:
        return self.branches + max(self.others, graph_breaks() - self.before)
