"""A region as a graph of its own. Its results are the truth of tests/transform/test_results.py."""

from __future__ import annotations

import graphs
from graphs import bf16
from torch.fx import Graph

from mixorder.rewrite.standalone import standalone


def test_its_text_does_not_depend_on_names() -> None:
    one, other, third = (
        standalone(graphs.only(graph), int)
        for graph in (graphs.pair_graph(512, 256), renamed(), graphs.pair_graph(512, 256, bf16))
    )
    assert str(one) == str(other) != str(third)
    assert str(one.module().graph) == str(other.module().graph)


def renamed() -> Graph:
    graph = graphs.pair_graph(512, 256)
    for node in graph.nodes:
        node.name = f"other_{node.name}"
    return graph
