"""Effects of random programs: logged calls, writes by custom operators, and collectives.

In: tensors, in a program or a trace of it. Out: results, and `LOG`, the calls in their order. The
collectives use a fake process group: no other process exists, and tensors do not change.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as collectives
from torch import Tensor
from torch._dispatch.python import enable_python_dispatcher
from torch._guards import detect_fake_mode
from torch.fx import Graph, Node, map_arg

from mixorder import pipeline

LOG: list[int] = []
BUMPED = 100  # added to the tag of a call that writes
WAIT = torch.ops._c10d_functional.wait_tensor.default


@torch.library.custom_op("mixorder_fuzz::note", mutates_args=())
def note(x: Tensor, tag: int) -> Tensor:
    """A copy. The call is logged as `tag`, and that of its gradient as `-tag`."""
    LOG.append(tag)
    return x.clone()


@note.register_fake
def _(x: Tensor, tag: int) -> Tensor:
    return torch.empty_like(x)


def _keep_tag(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.tag = inputs[1]


note.register_autograd(lambda ctx, grad: (note(grad, -ctx.tag), None), setup_context=_keep_tag)
note.register_effect(torch.library.EffectType.ORDERED)


@torch.library.custom_op("mixorder_fuzz::bump", mutates_args=("xs",))
def bump(xs: list[Tensor], y: Tensor, tag: int) -> None:
    """Write tensors; the call is logged."""
    LOG.append(BUMPED + tag)
    for x in xs:
        x.mul_(0.5).add_((y if y.shape == x.shape else y.new_ones(())).to(x.dtype))


class _Reduced(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, how: str) -> Tensor:
        ctx.how = how
        return collectives.all_reduce(x, how, dist.group.WORLD)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return collectives.wait_tensor(collectives.all_reduce(grad, ctx.how, dist.group.WORLD)), None


def all_reduce(x: Tensor, how: str) -> Tensor:
    """Reduce over the group, and wait for the result; the gradient is reduced, too."""
    if x.is_floating_point():
        return collectives.wait_tensor(_Reduced.apply(x, how))
    return collectives.wait_tensor(collectives.all_reduce(x, how, dist.group.WORLD))


@contextlib.contextmanager
def group(needed: bool) -> Iterator[None]:
    """A fake process group of two ranks, where a program needs one."""
    if not needed or dist.is_initialized():
        yield
        return
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()


def sequence(graph: Graph) -> list[str]:
    """The nodes with effects, in order. Waits for collectives are left out: they always come after the
    collective."""
    return [node.name for node in graph.nodes if node.op == "call_function" and _does_something(node)]


def guards(graph: Graph) -> list[str]:
    """What holds of the symbolic sizes of a graph's tensors."""
    mode = detect_fake_mode([node.meta.get("val") for node in graph.nodes])
    return [] if mode is None or mode.shape_env is None else [str(g.expr) for g in mode.shape_env.guards]


def evaluate(nodes: Sequence[Node]) -> None:
    """Compute the fake tensors of new nodes, as Inductor does after each pass over a graph."""
    for node in nodes:
        if isinstance(node.target, torch._ops.OpOverload | torch._ops.HigherOrderOperator):
            args, kwargs = map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
            with detect_fake_mode([args, kwargs, node.meta["val"]]), enable_python_dispatcher():
                node.target(*args, **kwargs)


def _does_something(node: Node) -> bool:
    target = node.target
    if isinstance(target, torch._ops.HigherOrderOperator):
        return target.name() in ("with_effects", "auto_functionalized", "auto_functionalized_v2")
    if not isinstance(target, torch._ops.OpOverload) or target is WAIT:
        return False
    return (
        target.namespace in ("_c10d_functional", "mixorder_fuzz")
        or torch.Tag.nondeterministic_seeded in target.tags
        or target._schema.is_mutable
    )


@contextlib.contextmanager
def watched(moved: list[str]) -> Iterator[None]:
    """Adds to `moved` a line for each graph in which mixorder's pass changes the order of effects, or adds
    guards on sizes: with these, Inductor compiles what is not fused in another way as well."""
    run: Callable[..., Any] = pipeline.run

    def compared(graph: Graph, *args: Any, **kwargs: Any) -> Any:
        before, known = (sequence(graph), guards(graph)), set(graph.nodes)
        result = run(graph, *args, **kwargs)
        evaluate([node for node in graph.nodes if node not in known])
        if (after := (sequence(graph), guards(graph))) != before:
            moved.append(f"{before} became {after}")
        return result

    with mock.patch.object(pipeline, "run", compared):
        yield
