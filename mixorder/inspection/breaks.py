"""How many graph breaks dynamo makes while a model runs."""

from __future__ import annotations

from torch._dynamo.utils import counters
from torch.fx import GraphModule


class Breaks:
    """Counts graph breaks from its creation on.

    Torch's counter has what dynamo cannot capture, but no branches on a tensor's value. Each graph has the
    reason for its end, but a break may come before the first graph. `count` joins the two.
    """

    def __init__(self) -> None:
        self.before = _counted()
        self.branches = self.others = 0

    def add(self, graph: GraphModule) -> None:
        """Count the break that ended a graph, if one did."""
        reason = getattr(graph, "compile_subgraph_reason", None)
        if reason is not None and reason.graph_break:
            branch = reason.reason.startswith("generic_jump")
            self.branches += branch
            self.others += not branch

    def count(self) -> int:
        return self.branches + max(self.others, _counted() - self.before)


def _counted() -> int:
    return sum(counters["graph_break"].values())
