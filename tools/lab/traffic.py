"""Launches and bytes of subgraphs of the corpus, without a GPU: Inductor's kernels, and mixorder's.

    python tools/lab/traffic.py FILE [--every 14]       # by the installed torch, a line of JSON a subgraph
    python tools/lab/traffic.py FILE FILE --compare     # their sums, and where mixorder has more bytes

Inductor compiles each subgraph for a GPU that is not there, without mixorder and with it. Bytes are those
in the ranges that its scheduler has each kernel read and write, and for a region those of its prediction.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from lab import ROOT

CORPUS = ROOT / "tools" / "data" / "corpus.jsonl.xz"
# Of a wrapper's text: kernels that it runs, and the sums of partial results of mix-order reductions, which
# torch computes, with their casts.
LAUNCH = re.compile(
    r"\w\.run\(|^ +(?:\w+ = )?extern_kernels\.|\.sum\(dim=0\)|(?<=\.sum\(dim=0\)).*\.to\(", re.M
)
WORKSPACE = re.compile(r"^ +workspace_\d+ = empty_strided_cuda\(\((\d+), \), \(1, \), torch.float32\)", re.M)
SIZE = (16384, 4096)  # of the casts
MORE = 0.01  # of bytes, that are told


@dataclasses.dataclass(frozen=True)
class Kernels:
    """What a subgraph was compiled to. `bytes`: of all but partial results of sums (`partial`), which mostly
    stay in L2. `regions`: space and strategy of those that mixorder fused."""

    launches: int
    bytes: int
    partial: int
    regions: tuple[str, ...] = ()


class Written(Exception):
    """Inductor has written its code, which nothing here can load."""


@dataclasses.dataclass(frozen=True)
class Job:
    """A function, and the shape, stride, dtype and device of each of its inputs."""

    key: str
    family: str
    make: Callable[[], Callable[..., Any]]
    inputs: Sequence[tuple[Sequence[int], Sequence[int], Any, str]]


def jobs(every: int) -> Iterator[Job]:
    """Every so many-th subgraph of the corpus; the casts, those of one tensor behind a norm as well."""
    import torch
    from support import quantised

    from lab import corpus

    for entry in corpus.load(CORPUS)[::every]:
        inputs = [(*i.hint, getattr(torch, i.dtype), "cpu" if i.on_cpu else "cuda") for i in entry.inputs]
        yield Job(entry.key, entry.places[0].family, entry.module, inputs)
    casts = {"mx_rows": quantised.mx_rows} | {n: r.function for n, r in quantised.RECIPES.items()}
    for name, cast in casts.items():
        specs = quantised.RECIPES[name].like(*SIZE) if name in quantised.RECIPES else [(SIZE, torch.bfloat16)]
        inputs = [(shape, torch.empty(shape, device="meta").stride(), d, "cuda") for shape, d in specs]
        yield Job(name, "casts", lambda cast=cast: cast, inputs)
        if len(specs) == 1:
            yield Job(f"norm, {name}", "norms and casts", lambda cast=cast: behind_a_norm(cast), inputs)


def behind_a_norm(cast: Callable[[Any], Any]) -> Callable[[Any], Any]:
    import torch

    return lambda x: cast(torch.nn.functional.rms_norm(x, x.shape[-1:]))


def compiled(job: Job, **options: Any) -> Kernels:
    import torch
    from torch._inductor import graph, ir, scheduler
    from torch._subclasses.fake_tensor import FakeTensorMode

    from mixorder.report import RegionRecord, collect

    written_kernels: list[Kernels] = []

    def written(lowered: Any) -> Any:
        code, nodes = lowered.codegen()[0].value, lowered.scheduler.nodes
        inductors = [n for n in nodes if not isinstance(n.node, ir.UserDefinedTritonKernel)]
        mixed = [s for n in nodes if isinstance(n, scheduler.FusedMixOrderReductions) for s in n.get_nodes()]
        counted, of_mixed = sum(map(partial_bytes, inductors)), sum(map(partial_bytes, mixed))
        size = sum(map(accessed_bytes, inductors)) - 2 * counted
        workspaces = 4 * sum(map(int, WORKSPACE.findall(code)))  # the scheduler has other sizes for them
        written_kernels.append(
            Kernels(len(LAUNCH.findall(code)), size, 2 * (counted - of_mixed + workspaces))
        )
        raise Written

    torch._dynamo.reset()
    with (
        FakeTensorMode(),
        torch.no_grad(),
        mock.patch.object(graph.GraphLowering, "compile_to_module", written),
        mock.patch.object(scheduler, "has_triton", lambda *_: True),
        collect() as outcomes,
    ):
        function = torch.compile(job.make(), dynamic=False, options={"fx_graph_cache": False, **options})
        try:
            function(*(torch.empty_strided(s, t, dtype=d, device=where) for s, t, d, where in job.inputs))
        except Exception:
            if not written_kernels:
                raise
    regions = [outcome for outcome in outcomes if isinstance(outcome, RegionRecord)]
    region_bytes, partial = (
        sum(r.traffic.read + r.traffic.written for r in regions),
        sum(r.traffic.workspace for r in regions),
    )
    (kernels,) = written_kernels
    return Kernels(
        kernels.launches,
        kernels.bytes + region_bytes,
        kernels.partial + 2 * partial,
        tuple(f"{r.space} {r.strategy}" for r in regions),
    )


def accessed_bytes(node: Any) -> int:
    """Bytes that a kernel of Inductor's reads and writes: of a buffer, at most those in the ranges of the
    loops. The scheduler counts all of it where loops that were fused read a slice."""
    from torch._inductor.dependencies import MemoryDep
    from torch._inductor.virtualized import V

    ranges: dict[str, dict[Any, float]] = defaultdict(dict)  # elements by where a range begins
    for dep in node.read_writes.reads_and_writes():
        is_direct = isinstance(dep, MemoryDep) and not dep.is_indirect()
        key = (dep.get_offset(), dep.get_numel()) if is_direct else None
        ranges[dep.name][key] = int(dep.get_numel()) if is_direct else math.inf
    sizes = node.get_read_write_buffer_accesses(include_reads=True, include_writes=True)
    return int(
        sum(min(size, sum(ranges[n].values()) * V.graph.get_dtype(n).itemsize) for n, size in sizes.items())
    )


def partial_bytes(node: Any) -> int:
    """Bytes of partial results that a kernel of Inductor's writes."""
    split = (s.node for s in node.get_nodes() if getattr(s.node, "_split_size", None) is not None)
    return sum(math.prod(map(int, buffer.get_size())) * buffer.get_dtype().itemsize for buffer in split)


def write(path: Path, every: int) -> None:
    from support import fake_cuda

    fake_cuda.load(backward=False)
    import torch
    import triton
    from support.stand_in import Driver

    triton.runtime.driver.set_active(Driver())
    with path.open("w") as lines:
        for job in jobs(every):
            record = {"key": job.key, "family": job.family, "torch": torch.__version__}
            try:
                record["stock"] = dataclasses.astuple(compiled(job, mixorder=False))
                record["ours"] = dataclasses.astuple(compiled(job, mixorder=True, mixorder_strict=True))
            except Exception as error:  # the next subgraph goes on
                record["error"] = f"{type(error).__name__}: {str(error)[:300]}"
            print(json.dumps(record), file=lines, flush=True)


def compare(paths: Iterable[Path]) -> None:
    """Of the subgraphs that all files have, those where mixorder fuses something by the last one."""
    files = [
        {record["key"]: record for record in map(json.loads, path.read_text().splitlines())} for path in paths
    ]
    keys = [k for k in files[-1] if all("ours" in file.get(k, ()) for file in files)]
    for key in (k for k in files[-1] if k not in keys):
        print(f"{key}: {[file.get(key, {}).get('error', 'missing') for file in files]}")
    fused = [k for k in keys if files[-1][k]["ours"][3]]
    families = {files[0][k]["family"] for k in keys}
    print(f"{len(keys)} graphs of {len(families)} families, {len(fused)} with a region")
    for file in files:
        for which in ("stock", "ours"):
            launches, size, partial, _ = zip(*(file[k][which] for k in fused), strict=True)
            sums = f"{sum(launches):,} | {sum(size) / 1e6:,.0f} | {sum(partial) / 1e6:,.0f}"
            print(f"| {file[fused[0]]['torch']} | {which} | {sums} |")
        for key in fused:
            stock, ours = file[key]["stock"], file[key]["ours"]
            if ours[1] > (1 + MORE) * stock[1] or ours[0] > stock[0]:
                print(f"  {key} {file[key]['family']}: {stock} {ours}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--every", type=int, default=14, help="take every so many-th subgraph")
    parser.add_argument("--compare", action="store_true")
    args = parser.parse_args()
    if args.compare:
        compare(args.files)
    else:
        write(args.files[0], args.every)


if __name__ == "__main__":
    main()
