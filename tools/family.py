"""The whole family on this GPU: each case of `tools/cases.py` in bf16, stock Inductor beside mixorder.

Prints, per case, the regions fused, and for the backward: launches, microseconds (CUDA-graph replay, L2
flushed, median), and the largest relative gradient error against float64. Exit status 1 if a case is not
fused, slower than stock, or less accurate.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import json
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch._functorch.config
from _timing import capture, count_graph_nodes, flush_buffer, time_graph
from cases import CASES, Case
from torch import Tensor

OPTIONS: dict[str, dict[str, Any]] = {
    "stock": {"mixorder": False},
    "mixorder": {"mixorder": True, "mixorder_strict": True},
}
SLACK = 1.02  # two medians of the same kernels differ by up to this factor


@dataclasses.dataclass
class Measured:
    launches: int
    microseconds: float
    error: float
    fused: list[str]
    declined: list[str]


def measure(
    case: Case, module: torch.nn.Module, options: dict[str, Any], exact: list[Tensor], flush: Tensor
) -> Measured:
    from mixorder.errors import Decline
    from mixorder.report import collect

    torch._dynamo.reset()
    leaves = [make_input(case), *module.parameters()]
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream), collect() as records:
        y = torch.compile(module, options=options, dynamic=False)(leaves[0])
        dy = upstream(y)

        def step() -> Sequence[Tensor]:
            return torch.autograd.grad(y, leaves, dy, retain_graph=True)

        for _ in range(3):
            step()
        stream.synchronize()
    captured = capture(step, stream)
    time = time_graph(captured, stream, flush).median_us
    counts = count_graph_nodes(captured.graph.raw_cuda_graph())
    errors = [float((g.double() - e).norm() / e.norm()) for g, e in zip(captured.outputs, exact, strict=True)]
    return Measured(
        counts["kernels"] + counts["memsets"] + counts["memcpys"],
        time,
        max(errors),
        [record.space for record in records if not isinstance(record, Decline)],
        [str(record) for record in records if isinstance(record, Decline)],
    )


def make_input(case: Case, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    generator = torch.Generator("cuda").manual_seed(1)
    x = torch.randn(case.shape, device="cuda", dtype=torch.bfloat16, generator=generator)
    return x.to(dtype).requires_grad_()


def upstream(y: Tensor) -> Tensor:
    generator = torch.Generator("cuda").manual_seed(2)
    return torch.randn(y.shape, device="cuda", dtype=torch.bfloat16, generator=generator).to(y.dtype)


def reference(case: Case, module: torch.nn.Module) -> list[Tensor]:
    exact = copy.deepcopy(module).double()
    x = make_input(case, torch.float64)
    y = exact(x)
    return list(torch.autograd.grad(y, [x, *exact.parameters()], upstream(y)))


def run_case(name: str, case: Case, flush: Tensor) -> dict[str, Measured]:
    torch.manual_seed(0)
    module = case.make().to("cuda", torch.bfloat16)
    exact = reference(case, module)
    found = {key: measure(case, module, options, exact, flush) for key, options in OPTIONS.items()}
    torch.cuda.empty_cache()
    return found


def row(name: str, found: dict[str, Measured]) -> str:
    stock, ours = found["stock"], found["mixorder"]
    return (
        f"| {name} | {', '.join(ours.fused) or 'no: ' + '; '.join(ours.declined)} "
        f"| {stock.launches} -> {ours.launches} "
        f"| {stock.microseconds:.1f} -> {ours.microseconds:.1f} "
        f"| {stock.microseconds / ours.microseconds:.2f} | {stock.error:.2e} / {ours.error:.2e} |"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", default="", help="only names that contain one of these, comma-separated")
    parser.add_argument("--out", type=Path, default=Path("family.json"))
    args = parser.parse_args()
    torch._functorch.config.donated_buffer = False  # the backward is run many times
    flush = flush_buffer()
    wanted = [n for n in CASES if any(part in n for part in args.cases.split(","))]
    results: dict[str, Any] = {}
    bad: list[str] = []
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, bf16")
    print("| case | fused | launches | us | speedup | error stock / ours |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name in wanted:
        try:
            found = run_case(name, CASES[name], flush)
        except Exception as error:
            traceback.print_exc(file=sys.stderr)
            print(f"| {name} | {type(error).__name__}: {str(error)[:120]!r} |", flush=True)
            bad.append(name)
            continue
        print(row(name, found), flush=True)
        results[name] = {key: dataclasses.asdict(value) for key, value in found.items()}
        args.out.write_text(json.dumps(results, indent=1))
        stock, ours = found["stock"], found["mixorder"]
        slower = ours.microseconds > stock.microseconds * SLACK
        if not ours.fused or slower or ours.error > stock.error * 1.05 + 1e-6:
            bad.append(name)
    print(f"not fused, slower or less accurate: {', '.join(bad) or 'none'}")
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
