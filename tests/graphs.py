"""Post-grad backward graphs to test on, made on the CPU: real ones, and traced from functions.

`backward_graph` compiles a module with Inductor's front end and keeps the graph that our pass would
get. `traced` makes the graph of a function on fake tensors, so that shapes may be large. CPU
LayerNorm saves its statistics in the input's dtype where CUDA saves fp32: `layer_norm_backward` and
`rms_norm_backward` trace the backward ops with fp32 statistics, as a GPU would.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch._dynamo.source import ConstantSource
from torch._guards import detect_fake_mode
from torch._inductor.compile_fx import compile_fx
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.fx_passes.post_grad import post_grad_passes
from torch._inductor.virtualized import V
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from mixorder import pipeline
from mixorder.codegen.source import KernelSource
from mixorder.errors import Decline
from mixorder.ir.program import Compute, LoopProgram
from mixorder.lowering.lower import lower
from mixorder.lowering.tile import lower_tile
from mixorder.options import Options
from mixorder.region.find import find_regions
from mixorder.region.region import Region
from mixorder.report import RegionRecord, collect
from mixorder.rewrite.rewrite import replace
from mixorder.schedule.device import MEASURED as H200
from mixorder.schedule.device import DeviceInfo
from mixorder.schedule.facts import RowFacts, facts_of
from mixorder.schedule.plan import Plan
from mixorder.strategies import STRATEGIES, Strategy
from mixorder.strategies.cooperative import COOPERATIVE
from mixorder.strategies.persistent import PERSISTENT
from mixorder.transform.cooperative import cut_into_phases, with_mailbox
from mixorder.transform.fma import form_fma
from mixorder.transform.register_scheduling import schedule_for_registers
from mixorder.transform.reorder import reorder
from mixorder.transform.same_bits import simplify_exactly
from mixorder.transform.split import split_outer
from mixorder.transform.tile_split import split_spanning

bf16, f16, f32, f64, i64 = torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.int64

Spec = tuple[tuple[int, ...], torch.dtype]

BENCHMARK = (  # rows and columns, as of tools/bench.py
    *((4096, 4096), (8192, 4096), (32768, 4096), (32768, 768), (32768, 2048), (8192, 8192)),
    *((1_000_000, 256), (1 << 20, 128)),
)


class HFRMSNorm(nn.Module):
    """RMSNorm as Hugging Face models write it: fp32 inside, a cast, then the weight."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        dtype = x.dtype
        x = x.to(torch.promote_types(dtype, f32))  # `.float()` there; this one takes fp64 as well
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * x.to(dtype)


class Block(nn.Module):
    """Pre-norm: norm, Linear, residual, norm, Linear-GELU-Linear, residual, final norm."""

    def __init__(self, dim: int, norm: Callable[[int], nn.Module] = nn.LayerNorm) -> None:
        super().__init__()
        self.norm1, self.norm2, self.norm3 = norm(dim), norm(dim), norm(dim)
        self.mix = nn.Linear(dim, dim)
        self.up = nn.Linear(dim, 2 * dim)
        self.down = nn.Linear(2 * dim, dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.mix(self.norm1(x))
        x = x + self.down(F.gelu(self.up(self.norm2(x))))
        return self.norm3(x)


class PostNorm(nn.Module):
    """A chain of Linears, each with a residual around it and a norm behind, as in BERT."""

    def __init__(self, dim: int, norm: Callable[[int], nn.Module] = nn.LayerNorm, layers: int = 4) -> None:
        super().__init__()
        self.linears = nn.ModuleList(nn.Linear(dim, dim) for _ in range(layers))
        self.norms = nn.ModuleList(norm(dim) for _ in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for linear, norm in zip(self.linears, self.norms, strict=True):
            x = norm(x + linear(x))
        return x


class WideLayerNorm(nn.LayerNorm):
    """What CUDA's autocast makes of a LayerNorm; the CPU's leaves it in bfloat16."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.to(torch.promote_types(x.dtype, f32)))


NORMS: dict[str, Callable[[int], nn.Module]] = {
    "layer": nn.LayerNorm,
    "layer_no_bias": lambda n: nn.LayerNorm(n, bias=False),
    "layer_plain": lambda n: nn.LayerNorm(n, elementwise_affine=False),
    "rms": nn.RMSNorm,
    "hf": HFRMSNorm,
}


def randomised(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    with torch.no_grad():
        for p in module.parameters():
            p.normal_()
    return module.to(dtype)


class _Captured(Exception):
    """The backward graph is there and need not run."""


def backward_graph(
    module: nn.Module, shape: Sequence[int], dtype: torch.dtype = f32, run_backward: bool = True
) -> Graph:
    """The backward of `module` as Inductor has it after its post-grad passes.

    Without `run_backward` it is only compiled: launches of GPU kernels do not run here.
    """
    seen: list[GraphModule] = []

    def inner_compile(gm: GraphModule, inputs: Any, **_: Any) -> Callable[..., Any]:
        with V.set_fake_mode(detect_fake_mode(inputs)):
            post_grad_passes(gm, is_inference=False)
        seen.append(gm)
        if len(seen) == 2 and not run_backward:
            raise _Captured
        gm.recompile()

        def call(args: list[Any]) -> Any:
            return torch.fx.Interpreter(gm).boxed_run(args)

        call._boxed_call = True  # type: ignore[attr-defined]
        return call

    torch._dynamo.reset()
    compiled = torch.compile(
        module,
        backend=lambda gm, inputs: compile_fx(gm, inputs, inner_compile=inner_compile),
        dynamic=False,
    )
    x = torch.randn(shape, dtype=dtype, requires_grad=True)
    y = compiled(x)
    with contextlib.suppress(_Captured):
        torch.autograd.grad(y, [x, *module.parameters()], torch.ones_like(y))
    return seen[-1].graph


def traced(
    function: Callable[..., Any], *specs: Spec, in_place: bool = False, transposed: Sequence[int] = ()
) -> Graph:
    """The graph of `function`, after Inductor's decompositions and its post-grad passes.

    Arguments in `transposed` are of the shape stated, but lie in memory with their two dims swapped. With
    `in_place` there are no passes: writes stay where they are, and reads of what is written name the tensor
    itself.
    """
    with FakeTensorMode(shape_env=ShapeEnv()) as mode:
        args = [torch.empty(shape, dtype=dtype) for shape, dtype in specs]
        for i in transposed:
            args[i] = torch.empty(args[i].shape[::-1], dtype=args[i].dtype).t()
        gm = make_fx(function, decomposition_table=select_decomp_table())(*args)
    if in_place:
        for copy in [n for n in gm.graph.nodes if n.target is torch.ops.aten.copy_.default]:
            copy.replace_all_uses_with(copy.args[0])
    else:
        with V.set_fake_mode(mode):
            post_grad_passes(gm, is_inference=False)
    gm.graph.eliminate_dead_code()
    return gm.graph


def traced_symbolic(function: Callable[..., Any], *specs: Spec) -> Graph:
    """As `traced`, with every size above 1 symbolic."""
    args = [torch.empty(shape, dtype=dtype) for shape, dtype in specs]
    return make_fx(function, tracing_mode="symbolic")(*args).graph


def traced_rows(function: Callable[..., Any], *specs: Spec, symbolic: Sequence[int] | None = None) -> Graph:
    """As `traced`, with symbolic sizes in the dims of `symbolic`, by default all but the last.

    Those that are equal share a symbol.
    """
    mode = FakeTensorMode(shape_env=ShapeEnv())
    args = []
    for i, (shape, dtype) in enumerate(specs):
        free = range(len(shape) - 1) if symbolic is None else symbolic
        dims = [DimDynamic.DUCK if d in free else DimDynamic.STATIC for d in range(len(shape))]
        context = StatelessSymbolicContext(dynamic_sizes=dims)
        value = torch.empty(shape, dtype=dtype)
        args.append(mode.from_tensor(value, symbolic_context=context, source=ConstantSource(f"arg{i}")))
    decompositions = select_decomp_table()
    gm = make_fx(function, decomposition_table=decompositions, tracing_mode="symbolic")(*args)
    with V.set_fake_mode(mode):
        post_grad_passes(gm, is_inference=False)
    gm.graph.eliminate_dead_code()
    return gm.graph


def block_scales(rows: int, cols: int, transposed: bool = True, dtype: torch.dtype = bf16) -> Graph:
    """MXFP8 along rows and columns; the column-wise data transposed, or in place."""
    from support import quantised

    function = quantised.mx_both if transposed else quantised.mx_in_place
    return traced(lambda x: function(x), ((rows, cols), dtype))


def layer_norm_backward(
    rows: int,
    cols: int,
    dtype: torch.dtype = bf16,
    weight_dtype: torch.dtype | None = None,
    bias: bool = True,
) -> Graph:
    """LayerNorm's backward with fp32 statistics; `bias=False` leaves db out."""

    def function(dy: Any, x: Any, mean: Any, rstd: Any, w: Any) -> Any:
        dx, dw, db = torch.ops.aten.native_layer_norm_backward(
            dy, x, [cols], mean, rstd, w, w, [True, True, bias]
        )
        return (dx, dw, db) if bias else (dx, dw)

    full, stat = ((rows, cols), dtype), ((rows, 1), f32)
    return traced(function, full, full, stat, stat, ((cols,), weight_dtype or dtype))


def rms_norm_backward(
    rows: int, cols: int, dtype: torch.dtype = bf16, weight_dtype: torch.dtype | None = None
) -> Graph:
    """RMSNorm's backward with its fp32 rstd."""

    def function(dy: Any, x: Any, rstd: Any, w: Any) -> Any:
        return torch.ops.aten._fused_rms_norm_backward(dy, x, [cols], rstd, w, [True, True])

    full = ((rows, cols), dtype)
    return traced(function, full, full, ((rows, 1), f32), ((cols,), weight_dtype or dtype))


def group_norm_backward(
    samples: int,
    places: int,
    channels: int,
    groups: int,
    dtype: torch.dtype = bf16,
    bias: bool = False,
    symbolic: bool = False,
) -> Graph:
    """With the channels last. The statistics are of each group of channels of a sample. `bias`: with the
    gradient of one that was added in front of the norm. `symbolic`: for any number of samples."""

    def function(dy: Any, x: Any, mean: Any, rstd: Any, w: Any) -> Any:
        samples = x.shape[0]
        shape = (samples, places, groups, channels // groups)
        of_groups = (samples, 1, groups, 1)
        normed = (x.to(f32).view(shape) - mean.view(of_groups)) * rstd.view(of_groups)
        gradient, weight = dy.to(f32).view(shape), w.view(groups, -1)
        dw, db = (gradient * normed).sum(1), gradient.sum(1)
        count = places * channels // groups
        scale, shift = ((t * weight).sum(-1).view(of_groups) / count for t in (dw, db))
        dx = (gradient * weight - normed * scale - shift) * rstd.view(of_groups)
        dx = dx.view(samples, places, channels)
        results = dx.to(dtype), dw.sum(0).view(-1), db.sum(0).view(-1)
        return (*results, dx.sum((0, 1))) if bias else results

    full, statistics = ((samples, places, channels), dtype), ((samples, groups), f32)
    if symbolic:
        weight = ((1, channels), f32)
        return traced_rows(function, full, full, statistics, statistics, weight, symbolic=[0])
    return traced(function, full, full, statistics, statistics, ((channels,), f32))


def group_norm_forward(
    samples: int, places: int, channels: int, groups: int, dtype: torch.dtype = bf16, silu: bool = True
) -> Graph:
    """With the channels last, as Inductor's decomposition has it: a copy that is contiguous, and a view."""

    def function(x: Any, w: Any, b: Any) -> Any:
        rows = x.to(f32).transpose(1, 2).contiguous().view(samples, groups, channels // groups, places)
        var, mean = torch.var_mean(rows, (2, 3), correction=0, keepdim=True)
        rstd = (var + 1e-5).rsqrt()
        y = ((rows - mean) * rstd).view(samples, channels, places) * w[:, None] + b[:, None]
        y = (y * y.sigmoid() if silu else y).transpose(1, 2).to(dtype)
        return y, mean, rstd

    return traced(function, ((samples, places, channels), dtype), *[((channels,), f32)] * 2)


def batch_norm_backward(rows: int, channels: int, dtype: torch.dtype = bf16, symbolic: bool = False) -> Graph:
    """With the channels last, behind a ReLU. `symbolic`: for any number of rows."""

    def function(dy: Any, x: Any, y: Any, mean: Any, rstd: Any, w: Any) -> Any:
        rows = x.shape[0]
        gradient = torch.where(y <= 0, 0.0, dy).to(f32)
        normed = (x.to(f32) - mean) * rstd
        dw, db = (gradient * normed).sum(0), gradient.sum(0)
        return ((gradient - normed * (dw / rows) - db / rows) * (rstd * w)).to(dtype), dw, db

    full, of_channels = ((rows, channels), dtype), (((1, channels) if symbolic else (channels,)), f32)
    specs = full, full, full, of_channels, of_channels, of_channels
    return traced_rows(function, *specs, symbolic=[0]) if symbolic else traced(function, *specs)


def rope_backward(batch: int, tokens: int, heads: int, dim: int, dtype: torch.dtype = bf16) -> Graph:
    """The backward of Q's RMSNorm and the rotary embedding behind it: (b, h, t, d) in, (b, t, h, d) out."""
    shape, half = (batch, heads, tokens, dim), dim // 2

    def function(dy: Any, x: Any, rstd: Any, w: Any, cos: Any, sin: Any) -> Any:
        rotated = dy * sin
        first = torch.ops.aten.slice_backward(-rotated[..., :half], shape, 3, half, 2**63 - 1, 1)
        second = torch.ops.aten.slice_backward(rotated[..., half:], shape, 3, 0, half, 1)
        dy = (dy * cos + first + second).permute(0, 2, 1, 3)
        return torch.ops.aten._fused_rms_norm_backward(dy, x, [dim], rstd, w, [True, True])

    full, table = (batch, tokens, heads, dim), ((tokens, dim), dtype)
    specs = [(shape, dtype), (full, dtype), ((*full[:3], 1), f32), ((dim,), dtype), table, table]
    return traced(function, *specs)


def pair(x: torch.Tensor, dy: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The smallest region: one inner reduction, one outer, and a result of each side."""
    product = x * dy
    return dy - x * product.sum(-1, keepdim=True), product.sum(0)


def pair_graph(rows: int = 512, cols: int = 256, dtype: torch.dtype = f32) -> Graph:
    return traced(pair, ((rows, cols), dtype), ((rows, cols), dtype))


def find(graph: Graph) -> list[Region]:
    """All regions on the graph as it is; a decline is an error here."""
    found = list(find_regions(graph))
    for region in found:
        if isinstance(region, Decline):
            raise region
    return found  # type: ignore[return-value]


def in_turn(graph: Graph) -> Iterator[Region]:
    """Each region on the graph as the rewrite of those before it left it, as in the pipeline."""
    for region in find_regions(graph):
        if isinstance(region, Decline):
            continue
        yield region
        program, schedule, sources = kernels(region)
        replace(graph, region, program, sources, schedule.splits)


def only(graph: Graph) -> Region:
    (region,) = find(graph)
    return region


def within_tile(graph: Graph) -> Region:
    """The one region whose reductions end within a tile. Where it is not taken, they also make pairs."""
    (region,) = (region for region in find(graph) if region.orders is not None)
    return region


def lowered_tile(function: Callable[..., Any], *specs: Spec) -> LoopProgram:
    """The program, as lowered, of a function's one region whose reductions end within a tile."""
    return lower_tile(within_tile(traced(lambda *x: function(*x), *specs)))


def mixed_order(one: Callable[[Any, int], Any]) -> Callable[[Any], Any]:
    """A function of 256x512 elements: `one` of blocks of 32 along rows, and along columns, and their dim."""
    return lambda x: (one(x.view(256, 16, 32), 2), one(x.view(8, 32, 512), 1))


def ops(program: LoopProgram) -> list[str]:
    """The ops of a program's main nest, in order."""
    return [s.op for s in program.nests[0].body if isinstance(s, Compute)]


def merged(region: Region, runs_ptx: bool = True) -> LoopProgram:
    if region.orders is not None:
        return schedule_for_registers(simplify_exactly(split_spanning(lower_tile(region)), True, runs_ptx))
    return form_fma(reorder(simplify_exactly(split_outer(lower(region)), True, runs_ptx)))


def kernels(region: Region, device: DeviceInfo = H200) -> tuple[LoopProgram, Plan, tuple[KernelSource, ...]]:
    """A region's program, the schedule that the pipeline would choose, and the pair of kernels."""
    program = merged(region)
    for strategy in (s for s in STRATEGIES if s.tile_local == program.tile_local):
        with contextlib.suppress(Decline):
            loops, schedule = run_by(strategy, program, device)
            return loops, schedule, strategy.generate(loops, schedule, "test")
    raise AssertionError("no strategy takes the program")


def run_by(strategy: Strategy, program: LoopProgram, device: DeviceInfo = H200) -> tuple[LoopProgram, Plan]:
    """A program that `merged` made as a strategy runs it, and the schedule it chooses."""
    strategy.applies(program)
    loops = program if strategy.tile_local else strategy.transform(program, device)
    schedule = strategy.choose(strategy.facts(loops), device)
    return strategy.place(loops, schedule), schedule


def shared(program: LoopProgram, device: DeviceInfo = H200) -> tuple[LoopProgram, Plan]:
    """A merged program for several programs per row, and its schedule."""
    return run_by(COOPERATIVE, program, device)


def share(program: LoopProgram, parts: int, xblock: int, period: int = 1) -> LoopProgram:
    """A merged program for so many programs per row, which take `xblock` rows, `period` apart, at a time."""
    return with_mailbox(cut_into_phases(program), parts, xblock * period)


def phases_facts(program: LoopProgram) -> RowFacts:
    """Of a merged program as several programs per row run it."""
    return facts_of(cut_into_phases(program))


def generate(program: LoopProgram, schedule: Plan, label: str) -> tuple[KernelSource, ...]:
    """The kernels of a program, by the strategy that its schedule is of."""
    return (COOPERATIVE if schedule.group > 1 else PERSISTENT).generate(program, schedule, label)


def tile_of(plan: Plan) -> tuple[int, int, int]:
    """Rows of a tile, warps, and stages."""
    return plan.tile_rows, plan.launch.num_warps, plan.launch.num_stages


def short(dtype: torch.dtype) -> str:
    """A dtype in the spelling of Triton's signatures."""
    names = {bf16: "bf16", f16: "fp16", f32: "fp32", f64: "fp64", torch.int32: "i32", torch.int64: "i64"}
    return names[dtype]


def node(graph: Graph, name: str) -> Node:
    return next(n for n in graph.nodes if n.name == name)


def output_args(graph: Graph) -> tuple[Node, ...]:
    return tuple(next(iter(reversed(graph.nodes))).args[0])


def snapshot(graph: Graph) -> tuple[str, tuple[int, ...]]:
    """What must not change where a graph is left alone: its text and its very nodes."""
    return str(graph), tuple(id(n) for n in graph.nodes)


def path_through_remainder(region: Region) -> list[Node] | None:
    """A path from what a region writes through the remainder to what it reads; None if convex.

    The kernel needs all of its inputs before any of its outputs is there. A path may pass through
    members that are no outputs: those that somebody outside uses stay in the graph.
    """
    outputs, inputs = set(region.outputs), set(region.inputs)
    stack = [[start, user] for start in region.outputs for user in start.users]
    seen: set[Node] = set()
    while stack:
        path = stack.pop()
        if path[-1] in inputs:
            return path
        if path[-1] not in seen and path[-1] not in outputs:
            seen.add(path[-1])
            stack += [[*path, user] for user in path[-1].users]
    return None


def checked(region: Region) -> Region:
    """The region, which closes no cycle and has no node that none of its outputs needs."""
    assert path_through_remainder(region) is None and _closed(region)
    return region


def _closed(region: Region) -> bool:
    """Members are in graph order and each is needed by an output."""
    order = {n: i for i, n in enumerate(region.nodes[0].graph.nodes)}
    members = set(region.nodes)
    needed = set(region.outputs)
    for member in reversed(region.nodes):
        if member in needed:
            needed.update(a for a in member.all_input_nodes if a in members)
    return list(region.nodes) == sorted(members, key=order.__getitem__) and needed == members


def told(graph: Graph) -> str:
    """Each region of a graph as it is: its reductions, what it reads, and what it writes. Each decline."""
    lines = []
    for found in find_regions(graph):
        if isinstance(found, Decline):
            lines.append(found.reason.value)
            continue
        parts = (checked(found).inner, found.outer, found.inputs, found.outputs)
        inner, outer, reads, writes = (" ".join(n.name for n in nodes) or "-" for nodes in parts)
        lines.append(f"{found.space}: {inner} | {outer}, {reads} -> {writes}")
    return "; ".join(lines) or "nothing"


def random_program(seed: int) -> tuple[Callable[..., Any], list[Spec]]:
    """A program of the fuzzer without effects, of few elements, and its arguments."""
    from support.differential import function_of
    from support.inputs import Example
    from support.operators import EDGES, FLOATS, MOVES
    from support.programs import make

    wanted = random.Random(seed).choices(sorted(FLOATS | MOVES | EDGES), k=12)
    program = make(seed, small=True, wanted=wanted)
    function = function_of(program)
    given = Example(program, "cpu").inputs.values()
    return lambda *args: function(*args), [(tuple(t.shape), t.dtype) for t in given]


def random_graph(seed: int) -> Graph:
    function, specs = random_program(seed)
    return traced(function, *specs)


ALWAYS = Options(enabled=True, strict=True, interpret=True, min_numel=0)
"""Strict, without a GPU, and whatever time is predicted."""


def outcomes(graph: Graph, **options: Any) -> list[RegionRecord | Decline]:
    """What becomes of each region in the pass, which rewrites the graph."""
    with collect() as found:
        pipeline.run(graph, dataclasses.replace(ALWAYS, **options))
    graph.lint()
    return found


def fused(graph: Graph, **options: Any) -> RegionRecord:
    """The record of a graph's one region, which is fused."""
    (record,) = outcomes(graph, **options)
    assert isinstance(record, RegionRecord), record
    return record


def declined(graph: Graph, **options: Any) -> Decline:
    """Why a graph's one region is not fused."""
    (decline,) = outcomes(graph, **options)
    assert isinstance(decline, Decline), decline
    return decline


def choosing(change: Callable[..., Plan], *strategies: Strategy) -> tuple[Strategy, ...]:
    """The strategies with other schedules: `change` gets the strategy's own `choose` before its arguments."""
    return tuple(
        dataclasses.replace(s, choose=functools.partial(change, s.choose)) for s in strategies or STRATEGIES
    )


def generating(change: Callable[..., tuple[KernelSource, ...]]) -> tuple[Strategy, ...]:
    """The strategies with other kernels: `change` gets the strategy's own `generate` before its arguments."""
    return tuple(dataclasses.replace(s, generate=functools.partial(change, s.generate)) for s in STRATEGIES)
