"""What mixorder adds to a compile: the time of its pass, by model and by number of layers. Needs no GPU.

Each model's backward is traced with fake tensors, up to the point at which the pass gets it; the pass then
runs on copies of that graph. The table has the medians of some runs, after one that is not counted:
milliseconds in total, per region, and per region in each stage. `planned` is the number of regions
that are not like one before.

With `--inductor` the rest of the compile follows, without mixorder and with it: seconds of Inductor's
post-grad passes (with mixorder's), of its lowering, and of its scheduling and code generation. A stub
replaces the GPU driver, and Inductor's own kernels are generated as C++: compare the two with each other, not
with another machine. The generated code is neither compiled nor run.
"""

from __future__ import annotations

import copy
import dataclasses
import re
import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch._inductor.config as config
from lab import arguments
from lab.loops import Attention, Block, SwiGlu
from lab.tables import table
from support.compilers import Look, looking
from support.stand_in import Driver
from torch import nn
from torch._guards import detect_fake_mode
from torch._inductor.compile_fx import record_original_output_strides
from torch._inductor.fx_passes.post_grad import post_grad_passes
from torch._inductor.virtualized import V
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Graph, GraphModule

import mixorder.pipeline as pipeline
from mixorder.demo_model import HuggingFaceRMSNorm, Transformer
from mixorder.inductor import mutation_cache as analysis
from mixorder.options import Options
from mixorder.plugin import graph_pass
from mixorder.report import RegionRecord, collect

OPTIONS = Options(enabled=True, interpret=True)
HEAD_DIM = 128
RUNS = 3


def llama(layers: int, dim: int) -> nn.Module:
    """RMSNorm in fp32, rotary embedding, SwiGLU, no biases."""

    def block() -> nn.Module:
        mix = Attention(dim, dim // HEAD_DIM, rotary=True, bias=False)
        return Block(dim, mix, SwiGlu(dim, 4 * dim), HuggingFaceRMSNorm)

    return nn.Sequential(*(block() for _ in range(layers)), HuggingFaceRMSNorm(dim))


# Of layers and width; "gpt" has LayerNorm and biases, "demo" RMSNorm and biases.
MODELS: dict[str, Callable[[int, int], nn.Module]] = {
    "gpt": lambda layers, dim: Transformer(layers, dim, "layer"),
    "demo": lambda layers, dim: Transformer(layers, dim, "rms"),
    "llama": llama,
}


class _Done(Exception):
    """Raised after the backward's graph was analysed: it need not run."""


def backward(model: str, layers: int, shape: tuple[int, int, int], look: Look) -> None:
    """Have `look` called with the backward's graph and inputs as Inductor gets them."""
    seen: list[GraphModule] = []

    def second(gm: GraphModule, inputs: Sequence[Any]) -> None:
        if seen:
            record_original_output_strides(gm)
            look(gm, inputs)
            raise _Done
        post_grad_passes(gm, is_inference=False)
        seen.append(gm)

    torch._dynamo.reset()
    with FakeTensorMode(allow_non_fake_inputs=True):
        torch.set_default_dtype(torch.bfloat16)
        module, x = MODELS[model](layers, shape[2]), torch.randn(shape, requires_grad=True)
        torch.set_default_dtype(torch.float32)
        y = torch.compile(module, backend=looking(second), dynamic=False)(x)
        try:
            y.backward(torch.ones_like(y))
        except Exception as error:
            if "_Done" not in repr(error):
                raise


@dataclasses.dataclass(frozen=True)
class Run:
    """One run of the pass: milliseconds in all, and what the records hold."""

    ms: float
    records: list[RegionRecord]
    declined: int

    def stages(self) -> Counter[str]:
        total: Counter[str] = Counter()
        for record in self.records:
            total.update(dict(record.planning.stage_ms))
        return total


def run_pass(graph: Graph) -> Run:
    graph = copy.deepcopy(graph)
    with collect() as collected:
        started = time.perf_counter()
        pipeline.run(graph, OPTIONS)
        ms = 1e3 * (time.perf_counter() - started)
    records = [r for r in collected if isinstance(r, RegionRecord)]
    return Run(ms, records, len(collected) - len(records))


def pass_row(model: str, layers: int, shape: tuple[int, int, int]) -> list[str]:
    graphs: list[Graph] = []

    def look(gm: GraphModule, inputs: Sequence[Any]) -> None:
        post_grad_passes(gm, is_inference=False)
        graphs.append(copy.deepcopy(gm.graph))

    backward(model, layers, shape, look)
    run_pass(graphs[0])
    runs = [run_pass(graphs[0]) for _ in range(RUNS)]
    count = len(runs[0].records)
    assert count and not runs[0].declined, f"{model}: {count} regions, {runs[0].declined} declined"
    ms = statistics.median(r.ms for r in runs)
    lowered = sum("lower" in dict(r.planning.stage_ms) for r in runs[0].records)
    stages = {s: statistics.median(r.stages()[s] for r in runs) / count for s in runs[0].stages()}
    parts = sorted(((part, s) for s, part in stages.items() if part >= 0.05), reverse=True)
    return [
        model,
        *map(str, (layers, len(graphs[0].nodes), count, lowered)),
        f"{ms:.0f}",
        f"{ms / count:.2f}",
        ", ".join(f"{stage} {part:.2f}" for part, stage in parts),
    ]


# Inductor's own time.


def inductor_row(model: str, layers: int, shape: tuple[int, int, int], enabled: bool) -> list[str]:
    from torch._inductor.debug import DebugContext
    from torch._inductor.graph import GraphLowering

    times: list[float] = [time.perf_counter()]
    code: list[str] = []

    def look(gm: GraphModule, inputs: Sequence[Any]) -> None:
        ours = {"post_grad_custom_post_pass": graph_pass(), **OPTIONS.as_config()} if enabled else {}
        times[0] = time.perf_counter()
        with config.patch(ours):
            post_grad_passes(gm, is_inference=False)
        times.append(time.perf_counter())
        mode = detect_fake_mode(inputs)
        graph = GraphLowering(gm, example_inputs=inputs, shape_env=mode.shape_env, is_backward=True)
        with V.set_graph_handler(graph), DebugContext():
            graph.run(*inputs)
            times.append(time.perf_counter())
            code.append(graph.codegen()[0].value)
        times.append(time.perf_counter())

    backward(model, layers, shape, look)
    spent = [end - start for start, end in zip(times, times[1:], strict=False)]
    launches = len(re.findall(r"^ *triton_mixorder_\w+\(|^ *triton_mixorder_\w+\.run\(", code[0], re.M))
    defined = len(re.findall(r"^triton_mixorder_\w+ = ", code[0], re.M))
    counts = [str(launches), str(defined)] if enabled else ["", ""]
    return [model, str(layers), "mixorder" if enabled else "stock", *counts] + [
        f"{s:.2f}" for s in (*spent, sum(spent))
    ]


def inductor_rows(models: list[str], layers: list[int], shape: tuple[int, int, int]) -> list[list[str]]:
    import torch._higher_order_ops.triton_kernel_wrap as triton_kernel_wrap
    import triton

    triton.runtime.driver.set_active(Driver())
    analysis.share(triton_kernel_wrap)  # as the installed plugin does
    for enabled in (False, True):  # what is paid once per process
        inductor_row(models[0], 1, shape, enabled)
    return [inductor_row(m, n, shape, enabled) for m in models for n in layers for enabled in (False, True)]


PASS_HEAD = ["model", "layers", "nodes", "regions", "planned", "ms", "ms per region", "of that"]
INDUCTOR_HEAD = [
    *("model", "layers", "compile", "launches", "kernels"),
    *("post-grad, s", "lowering, s", "codegen, s", "sum, s"),
]


def main() -> None:
    parser = arguments.parser(__doc__)
    add = parser.add_argument
    add("--models", default=",".join(MODELS), help="of %(default)s")
    add("--layers", default="8,16,32", help="numbers of layers (default: %(default)s)")
    add("--shape", default="4x512x1024", help="sequences x tokens x width (default: %(default)s)")
    add("--inductor", action="store_true", help="also time the rest of the compile, stock and with mixorder")
    args = parser.parse_args()
    models, layers = args.models.split(","), [int(n) for n in args.layers.split(",")]
    batch, seq, dim = map(int, args.shape.split("x"))
    print(table(PASS_HEAD, [pass_row(m, n, (batch, seq, dim)) for m in models for n in layers]))
    if args.inductor:
        print()
        print(table(INDUCTOR_HEAD, inductor_rows(models, layers, (batch, seq, dim))))


if __name__ == "__main__":
    main()
