"""Where nodes come from: modules as `named_modules` has them, and the user's source lines."""

from __future__ import annotations

import graphs
import pytest
from graphs import node, traced
from torch import nn

from mixorder.region.provenance import Provenance, provenance_of


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(16) for _ in range(2)])

    def forward(self, x: object) -> object:
        for norm in self.norms:
            x = x + norm(x)
        return x


def test_a_backward_node_knows_its_module_and_line() -> None:
    graph = graphs.backward_graph(Layers(), (8, 16))
    sums = [n for n in graph.nodes if n.op == "call_function" and "aten.sum" in str(n.target)]
    found = [provenance_of([n]) for n in sums]
    assert {o.modules for o in found} == {(("norms.0", "LayerNorm"),), (("norms.1", "LayerNorm"),)}
    assert all(__file__ in line and "x = x + norm(x)" in line for o in found for line in o.lines)
    together = provenance_of(sums)
    assert len(together.modules) == 2 and len(together.lines) == 1
    assert str(together) == "norms.1, norms.0"


@pytest.mark.parametrize(
    ("path", "plain"),
    [
        ("L['self'].blocks.0.norm", "blocks.0.norm"),
        ("L['self']._modules['blocks']._modules['0']", "blocks.0"),
        ("L['model'].blocks[3].norm", "blocks.3.norm"),
        ("L['self']", ""),
    ],
)
def test_paths(path: str, plain: str) -> None:
    marked = node(graphs.pair_graph(), "mul")
    marked.meta["nn_module_stack"] = {"1": ("L['self']", "Outer"), "2": (path, nn.LayerNorm)}
    assert provenance_of([marked]).modules == ((plain, "LayerNorm"),)
    assert str(Provenance(((plain, "LayerNorm"),))) == (plain or "LayerNorm")


def test_frames_in_torch_are_passed_over() -> None:
    import torch

    marked = node(graphs.pair_graph(), "mul")
    own = '  File "/model/net.py", line 7, in forward\n    y = norm(x)\n'
    inside = f'  File "{torch.__file__}", line 9, in rms_norm\n    return torch.rms_norm(x)\n'
    marked.meta["stack_trace"] = own + inside
    assert provenance_of([marked]).lines == ("/model/net.py:7 in forward: y = norm(x)",)
    marked.meta["stack_trace"] = inside
    assert provenance_of([marked]).lines[0].endswith("in rms_norm: return torch.rms_norm(x)")


def test_unmarked_nodes_say_nothing() -> None:
    graph = traced(lambda x: x * 2, ((4, 4), graphs.f32))
    for n in graph.nodes:
        n.meta.pop("stack_trace", None)
    assert provenance_of(graph.nodes) == Provenance(numel=16) and str(Provenance()) == "unknown"
