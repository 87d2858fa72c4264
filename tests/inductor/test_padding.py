"""What Inductor pads in front of a launch."""

from __future__ import annotations

import torch
from torch._higher_order_ops.triton_kernel_wrap import kernel_side_table, triton_kernel_wrapper_mutation
from torch._inductor.graph import mark_nodes_dislike_padding
from torch.fx import Graph, Node

from mixorder.inductor import padding
from mixorder.inductor.mutation_cache import PREFIX

aten = torch.ops.aten


def marked(
    name: str, in_front_of_convolution: bool = True, own: bool = True, visible: bool = False
) -> dict[str, bool]:
    """Which of a launch's inputs and what they come from Inductor leaves dense; `name`: the kernel's. `own`:
    the result has memory of its own, and is not written over dy. `visible`: it is the graph's."""

    def kernel() -> None: ...

    kernel.__name__ = name
    kernel.src = f"tl.store({'out0_ptr' if own else 'in0_ptr'} + (x), dx)"  # type: ignore[attr-defined]
    graph = Graph()
    logits, weight, x = (graph.placeholder(one) for one in ("logits", "weight", "x"))
    nodes: dict[str, Node] = {}
    nodes["scaled"] = graph.call_function(aten.mul.Tensor, (logits, 2))
    nodes["rows"] = graph.call_function(aten.view.default, (nodes["scaled"], [12, 100]))
    nodes["summed"] = graph.call_function(aten.sum.dim_IntList, (x, [1], True))
    nodes["dy"] = graph.call_function(aten.mm.default, (nodes["rows"], weight))
    nodes["dx"] = graph.call_function(aten.empty_strided.default, ([12, 8], [8, 1]))
    given = {"in0_ptr": nodes["dy"], "in1_ptr": nodes["summed"], "out0_ptr": nodes["dx"]}
    if not own:
        del given["out0_ptr"]
        nodes["dx"] = nodes["dy"]
    index = kernel_side_table.add_kernel(kernel)  # type: ignore[arg-type]
    graph.call_function(triton_kernel_wrapper_mutation, (), {"kernel_idx": index, "kwargs": given})
    picture = graph.call_function(aten.view.default, (nodes["dx"], [12, 8, 1, 1]))
    if in_front_of_convolution:
        picture = graph.call_function(aten.convolution_backward.default, (picture, x, weight))
    graph.output(picture)
    mark = padding.through(mark_nodes_dislike_padding)
    mark(graph, {nodes["dx"]: (8, 1)} if visible else {})
    return {key: bool(node.meta.get(padding.MARK)) for key, node in nodes.items()}


def test_what_a_convolution_reads_behind_a_launch_is_not_padded() -> None:
    found = marked(f"{PREFIX}sum")
    assert found == {"scaled": True, "rows": True, "summed": False, "dy": True, "dx": True}
    assert marked(f"{PREFIX}sum", own=False) == found


def test_all_else_is_padded_as_without_us() -> None:
    assert not any(marked(f"{PREFIX}sum", in_front_of_convolution=False).values())
    found = marked("a_users_kernel")
    assert found["dx"] and not any(found[key] for key in ("scaled", "rows", "summed", "dy"))


def test_what_a_result_of_the_graph_comes_from_is_padded_as_without_us() -> None:
    """H200, BERT under autocast: the gradient of logits (16384, 30522) was not padded, since a norm's launch
    between it and the graph's results wrote its weight's gradient. 17.2 ms, 15.5 without mixorder."""
    found = marked(f"{PREFIX}sum", in_front_of_convolution=False, visible=True)
    assert found == {"scaled": False, "rows": False, "summed": False, "dy": False, "dx": True}
