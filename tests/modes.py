"""Ways to train that change the graphs: autocast, checkpointing, compiled autograd, subclasses and others.

Each test wants the pairs fused and the gradients within rounding of eager float64's. The tests are collected
where they are imported, which is also where `target` says how to compile: for the Triton interpreter in
tests/interpreter, with Inductor's options in tests/gpu.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from graphs import Block, HFRMSNorm, PostNorm, WideLayerNorm, bf16, f32, randomised
from grids import crossed
from torch import nn
from torch._dynamo.utils import counters
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from mixorder.errors import Decline
from mixorder.report import RegionRecord, collect

Tensors = tuple[torch.Tensor, ...]


@dataclasses.dataclass
class Target:
    """Where tensors live, and the arguments of `torch.compile` that turn mixorder on. `by_node`: whether what
    is in no region runs node by node, and rounds each result to its dtype."""

    device: str = ""
    by_node: bool = False
    compile: dict[str, Any] = dataclasses.field(default_factory=dict)


target = Target()

SHAPE = (37, 20)
NORMS: dict[str, Callable[[int], nn.Module]] = {"layer": nn.LayerNorm, "rms": nn.RMSNorm, "hf": HFRMSNorm}
ROUNDING = 2e-6


def norm(name: str = "layer") -> nn.Module:
    return randomised(NORMS[name](SHAPE[1]), f32).to(target.device)


def block(
    kind: Callable[[int], nn.Module] = nn.LayerNorm,
    dtype: torch.dtype = f32,
    of: Callable[..., nn.Module] = Block,
) -> nn.Module:
    module = randomised(of(SHAPE[1], kind), dtype).to(target.device)
    with torch.no_grad():
        for p in module.parameters():
            p.mul_(0.3)
    return module


def compiled(function: Callable[..., Any], **kwargs: Any) -> Callable[..., Any]:
    torch._dynamo.reset()
    return torch.compile(function, dynamic=False, **target.compile, **kwargs)


def inputs() -> Tensors:
    x, dy = (torch.randn(SHAPE, device=target.device) for _ in range(2))
    return x.requires_grad_(), dy


def grads(function: Callable[..., Any], module: nn.Module, x: torch.Tensor, dy: torch.Tensor) -> Tensors:
    y = function(x)
    return torch.autograd.grad(y, [x, *module.parameters()], dy.to(y.dtype))


def exact(
    module: nn.Module, x: torch.Tensor, dy: torch.Tensor, forward: Callable[..., Any] | None = None
) -> Tensors:
    """Gradients of x and the parameters in eager float64; `forward(module, x)` if it is not the module's."""
    module, x = copy.deepcopy(module).double(), x.detach().double().requires_grad_()
    return grads(lambda x: forward(module, x) if forward else module(x), module, x, dy.double())


def close(ours: Any, truths: Any, bound: float = ROUNDING) -> None:
    for mine, truth in zip(ours, truths, strict=True):
        assert mine.shape == truth.shape
        assert float((mine.double() - truth).norm()) <= bound * float(truth.norm())


def as_close(ours: Tensors, eager: Tensors, truths: Tensors) -> None:
    """Errors are relative, in the Euclidean norm. Those of vectors are held together: the last bits of a few
    numbers do not average out."""
    vectors: list[tuple[float, float]] = []
    for mine, theirs, truth in zip(ours, eager, truths, strict=True):
        error, allowed = (float((t.double() - truth).norm() / truth.norm()) for t in (mine, theirs))
        if truth.ndim == 1:
            vectors.append((error, allowed))
        assert error <= (1.5 if truth.ndim > 1 else 4) * allowed + ROUNDING
    error, allowed = (math.hypot(*found) for found in zip(*vectors, strict=True))
    assert error <= 1.5 * allowed + ROUNDING


def pairs(records: Sequence[RegionRecord | Decline]) -> int:
    """The regions with both an inner and an outer reduction."""
    return sum(isinstance(record, RegionRecord) and bool(record.inner) for record in records)


def fused(regions: int) -> bool:
    return counters["mixorder"]["fused_regions"] == regions


KINDS = (nn.LayerNorm, WideLayerNorm, nn.RMSNorm, HFRMSNorm)


@pytest.mark.parametrize(
    ("kind", "of", "where"),
    [
        *crossed(KINDS, [Block], ["inside", "outside"]),
        (WideLayerNorm, PostNorm, "inside"),
    ],
)
def test_autocast(kind: Callable[[int], nn.Module], of: Callable[..., nn.Module], where: str) -> None:
    """Float32 weights, matrix products in bfloat16; the casts between them and the norms join the regions.
    Behind residuals, a norm's dx goes on in float32 and, rounded, to a product: the next norm waits for both.
    """
    module, (x, dy) = block(kind, of=of), inputs()

    def inside(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast(target.device, bf16):
            return module(x)

    with collect() as records:
        if where == "inside":
            ours = grads(compiled(inside), module, x, dy)
        else:
            function = compiled(module)
            with torch.autocast(target.device, bf16):
                y = function(x)
            ours = torch.autograd.grad(y, [x, *module.parameters()], dy)
    assert fused(4) if of is Block else pairs(records) == 4
    assert all(mine.dtype == f32 for mine in ours)
    as_close(ours, grads(inside, module, x, dy), exact(module, x, dy))


@pytest.mark.parametrize(("where", "use_reentrant"), [("inside", False), ("around", True)])
def test_activation_checkpointing(where: str, use_reentrant: bool) -> None:
    """Inside the graph the partitioner recomputes; around it the whole forward runs again."""
    module, (x, dy) = block(), inputs()
    if where == "inside":
        function = compiled(lambda x: checkpoint(module, x, use_reentrant=use_reentrant))
    else:
        inner = compiled(module)
        function = lambda x: checkpoint(inner, x, use_reentrant=use_reentrant)  # noqa: E731
    function(x).backward(dy)
    assert fused(4)
    close([x.grad, *(p.grad for p in module.parameters())], exact(module, x, dy))


@pytest.mark.parametrize(("kind", "of"), [(nn.LayerNorm, PostNorm), (HFRMSNorm, Block)])
def test_activation_checkpointing_in_half_precision(
    kind: Callable[[int], nn.Module], of: Callable[..., nn.Module]
) -> None:
    """The forward's sums are recomputed in front of the matrix products: no region holds them."""
    module, (x, dy) = block(kind, bf16, of), inputs()
    x, dy = x.detach().to(bf16).requires_grad_(), dy.to(bf16)
    rounding = torch._inductor.config.patch(emulate_precision_casts=target.by_node)  # as in the forward
    with rounding, collect() as records:
        ours = grads(compiled(lambda x: checkpoint(module, x, use_reentrant=False)), module, x, dy)
    assert pairs(records) == len([m for m in module.modules() if isinstance(m, kind)])
    as_close(ours, grads(module, module, x, dy), exact(module, x, dy))


@pytest.mark.parametrize("keep", [("mm", "addmm"), ("native_layer_norm",), ()], ids=str)
def test_selective_checkpointing(keep: tuple[str, ...]) -> None:
    module, (x, dy) = block(), inputs()

    def policy(_: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        saved = any(f".{name}." in str(op) for name in keep)
        return CheckpointPolicy.MUST_SAVE if saved else CheckpointPolicy.MUST_RECOMPUTE

    contexts = functools.partial(create_selective_checkpoint_contexts, policy)
    function = compiled(
        lambda x: checkpoint(module, x, use_reentrant=False, context_fn=contexts), fullgraph=True
    )
    close(grads(function, module, x, dy), exact(module, x, dy))
    assert counters["mixorder"]["fused_regions"] >= 4


def test_backward_twice() -> None:
    """`retain_graph=True`: the second backward reads what the first one read, unwritten."""
    module, (x, dy) = block(), inputs()
    y = compiled(module)(x)
    wanted = [x, *module.parameters()]
    first = torch.autograd.grad(y, wanted, dy, retain_graph=True)
    kept = [g.clone() for g in first]
    second = torch.autograd.grad(y, wanted, dy)
    assert fused(4)
    for a, b, c in zip(first, second, kept, strict=True):
        assert torch.equal(a, b) and torch.equal(a, c)
    close(first, exact(module, x, dy))


def test_gradients_accumulate_inside_the_graph() -> None:
    """The sum with the old gradient is an epilogue of the region, and its copy a write to an input."""
    module, (x, dy) = norm(), inputs()
    old = [torch.randn_like(p) for p in module.parameters()]
    buffers = [g.clone() for g in old]

    def step(x: torch.Tensor, dy: torch.Tensor) -> torch.Tensor:
        x_hat = (x - x.mean(1, keepdim=True)) * torch.rsqrt(x.var(1, keepdim=True, correction=0) + 1e-5)
        dx_hat = dy * module.weight
        along = (dx_hat * x_hat).mean(1, keepdim=True)
        buffers[0].add_((dy * x_hat).sum(0))
        buffers[1].add_(dy.sum(0))
        return (dx_hat - dx_hat.mean(1, keepdim=True) - x_hat * along) * torch.rsqrt(
            x.var(1, keepdim=True, correction=0) + 1e-5
        )

    with torch.no_grad():
        dx = compiled(step)(x.detach(), dy)
    assert fused(1)
    truths = exact(module, x, dy)
    close([dx, *buffers], [truths[0], *(g + o for g, o in zip(truths[1:], old, strict=True))])


@contextlib.contextmanager
def compiled_autograd(how: str) -> Iterator[Callable[..., Any]]:
    """Yields what runs a training step under compiled autograd."""
    torch._dynamo.reset()
    if how == "config":
        with torch._dynamo.config.patch(compiled_autograd=True):
            yield torch.compile(lambda step: step(), dynamic=False, **target.compile)
    else:
        with torch._dynamo.compiled_autograd._enable(torch.compile(dynamic=False, **target.compile)):
            yield lambda step: step()
    torch._dynamo.reset()


@pytest.mark.parametrize("how", ["config", "enable"])
def test_compiled_autograd(how: str) -> None:
    module, (x, dy) = block(), inputs()

    def step() -> None:
        function(x).backward(dy)

    with compiled_autograd(how) as run:
        function = module
        if how == "enable":
            function = torch.compile(module, dynamic=False, **target.compile)
        run(step)
    assert fused(4)
    close([x.grad, *(p.grad for p in module.parameters())], exact(module, x, dy))


def extremes(x: torch.Tensor) -> Any:
    return x.amax(-1), x.amax(0)


def softmax_and_its_sums(x: torch.Tensor) -> Any:
    y = x.softmax(-1)
    return y, y.sum(0)


@pytest.mark.parametrize(
    ("context", "function"),
    [(torch.no_grad, extremes), (torch.inference_mode, softmax_and_its_sums)],
)
def test_inference(context: Callable[[], Any], function: Callable[..., Any]) -> None:
    x = torch.randn(SHAPE, device=target.device)
    with context():
        ours = compiled(function)(x)
    assert fused(1)
    close(ours, function(x.double()))


def test_one_module_used_twice() -> None:
    module, (x, dy) = norm(), inputs()

    def forward(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return module(module(x.sin()) * 2)

    ours = grads(compiled(functools.partial(forward, module)), module, x, dy)
    assert fused(1)  # one norm's dx is the other's dy, row by row: a single kernel
    close(ours, exact(module, x, dy, forward))


def test_a_subclass_of_two_tensors() -> None:
    """AOTAutograd traces both tensors into one graph: two pairs, which share the weights."""
    from torch.testing._internal.two_tensor import TwoTensor

    module, (a, dy) = norm(), inputs()
    b = torch.randn(SHAPE, device=target.device)
    x = TwoTensor(a.detach(), b).requires_grad_()
    dx, dw, db = grads(compiled(module), module, x, TwoTensor(dy, dy * 2))
    assert fused(2)
    close([dx.a, dw.a, db.a], exact(module, a, dy))
    close([dx.b, dw.b, db.b], exact(module, b, dy * 2))


@pytest.fixture
def mesh(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Ranks that exist in name only: collectives do nothing."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=request.param)
    try:
        yield torch.distributed.init_device_mesh(target.device, (request.param,))
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch has no torch.distributed")
@pytest.mark.parametrize(("name", "mesh"), crossed(NORMS, [1, 2]), indirect=["mesh"])
def test_shards_of_a_dtensor(name: str, mesh: Any) -> None:
    """Sharded over the sequence, weights replicated: the pair is found among the local tensors, and the
    weights' gradients are this rank's share of a sum."""
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

    local_module = norm(name)
    module = copy.deepcopy(local_module)
    for key, p in list(module.named_parameters()):
        replicated = DTensor.from_local(p.detach(), mesh, [Replicate()], run_check=False)
        setattr(module, key, nn.Parameter(replicated))
    local_x, local_dy = (torch.randn(2, 8, 20, device=target.device) for _ in range(2))
    x, dy = (DTensor.from_local(t, mesh, [Shard(1)], run_check=False) for t in (local_x, local_dy))
    ours = grads(compiled(module), module, x.requires_grad_(), dy)
    assert fused(1)
    assert ours[0].placements == (Shard(1),)
    assert all(g.placements == (Partial(),) for g in ours[1:])
    close([g.to_local() for g in ours], exact(local_module, local_x, local_dy))
