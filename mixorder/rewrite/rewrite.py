"""Replace a region of the FX graph by its kernels.

All or nothing: nodes are added first, and removed again if anything fails. Only then are the region's
outputs replaced and its dead nodes erased.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.fx import Graph, Node

from ..codegen.source import KernelSource
from ..inductor.tensors import is_dense, tracing
from ..ir.program import BufferRole, LoopProgram
from ..region.effects import between, has_effect
from ..region.layouts import follow, is_copied_as_stated, is_strided, lie_alike
from ..region.nodes import fake, shape_of, unviewed
from ..region.placement import moved
from ..region.region import Region
from .graph_writer import GraphWriter, is_launched

aten = torch.ops.aten


def replace(
    graph: Graph,
    region: Region,
    program: LoopProgram,
    kernels: tuple[KernelSource, ...],
    num_splits: int,
) -> dict[Node, Node]:
    """Replace the region by launches of its kernels, in order. The graph is in a legal order afterwards.

    Returns what replaces each of the region's outputs. Raises with the graph unchanged if anything fails.
    """
    writer = GraphWriter(graph, region)
    try:
        read = [writer.contiguous(n) if n in region.made_contiguous else n for n in region.inputs]
        nodes = dict(zip((b.name for b in program.role(BufferRole.INPUT)), read, strict=True))
        for name in dict.fromkeys(b.over for b in program.buffers if b.over):
            if nodes[name].op == "placeholder":
                nodes[name] = writer.overwritten(nodes[name])
        for buffer in program.buffers:
            if buffer.fill is not None:
                nodes[buffer.name] = writer.filled(buffer, buffer.fill)
            elif buffer.role is not BufferRole.INPUT and buffer.over is None:
                nodes[buffer.name] = writer.empty(buffer, num_splits)
        for source in kernels:
            sizes = {str(s): writer.size(s) for s in program.sizes if str(s) in source.sizes}
            made_of = (source in kernels[1:] and region.outer) or region.named_after
            buffers = {program.buffer(name): nodes[name] for name in source.buffers}
            nodes.update(writer.launch(source, buffers, sizes, made_of))
        results = []
        for buffer, old in zip(program.role(BufferRole.OUTPUT), region.outputs, strict=True):
            new = nodes[buffer.over or buffer.name]
            results.append(writer.reshaped(new, old) if buffer.over else new)
        for i, old in enumerate(region.outputs):
            if old in region.made_contiguous and is_copied_as_stated(old):
                results[i] = writer.strided(results[i], old)
            elif old in region.kept_fp32:
                results[i] = writer.rounded(results[i], old)
            _check_alike(results[i], old)
        sink(moved(region), writer.created[-1])
    except BaseException:
        writer.undo()
        raise
    for new, old in zip(results, region.outputs, strict=True):
        new.meta.update({k: v for k, v in old.meta.items() if k not in new.meta})
        old.replace_all_uses_with(new)
        if not lie_alike(new.meta["val"], old.meta["val"]):
            follow(new)
    for node in reversed(region.nodes):
        if not node.users:
            graph.erase_node(node)
    return dict(zip(region.outputs, results, strict=True))


def _check_alike(new: Node, old: Node) -> None:
    """Raise ValueError where a result is of another dtype or shape than what it replaces."""
    (mine, theirs), shapes = map(fake, (new, old)), tuple(map(shape_of, (new, old)))
    if mine is None or theirs is None or mine.dtype != theirs.dtype or shapes[0] != shapes[1]:
        raise ValueError(f"{new.name} for {old.name}: {mine} instead of {theirs}")


def copy_slices(graph: Graph) -> None:
    """Copy slices of kernels' results, such as of the gradient of a `cat`, that lie in these with gaps, for
    the gradients of convolutions. PyTorch does so again for each of the two that a convolution has. All else
    reads the result, which another slice may need as long: the copy is free earlier."""
    for node in graph.find_nodes(op="call_function", target=aten.convolution_backward.default):
        piece, transposed, wanted = node.args[0], node.args[7], node.args[10]
        if transposed or not all(wanted[:2]) or not is_launched(unviewed(piece, is_strided)):
            continue
        val = piece.meta["val"]
        if is_dense(val):
            continue
        with tracing(val.fake_mode):
            val = aten.clone.default(val)
        users = [user for user in piece.users if user.target is node.target and user.args[0] is piece]
        with graph.inserting_after(piece):
            copy = graph.call_function(aten.clone.default, (piece,))
        copy.meta.update(piece.meta, val=val)
        for user in users:
            user.replace_input_with(piece, copy)


def sink(nodes: Sequence[Node], last: Node) -> None:
    """Move nodes that stand before `last` behind it, in their order.

    Raises ValueError, with the graph unchanged, if that would change the order of effects.
    """
    if not nodes:
        return
    before, behind = nodes[0].prev, last.next
    places = [node.prev for node in nodes]
    order = list(filter(has_effect, between(before, behind)))
    for node in nodes:
        last.append(node)
        last = node
    if order != list(filter(has_effect, between(before, behind))):
        for node, place in zip(nodes, places, strict=True):
            place.append(node)
        raise ValueError("the region's launch would change the order of effects")
