"""The table of contents: every stage that a graph goes through, in order.

`run` is the post-grad pass. Up to the rewrite no stage changes the graph, so a region that is declined, or
that a bug stops, leaves it as it was; Inductor carries on with what is there.
"""

from __future__ import annotations

import functools
import logging
import re
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch.fx import Graph

from .codegen.kernel import generate
from .errors import Decline, MixorderError
from .graph import legality
from .graph.find import find_regions
from .graph.region import Region
from .graph.rewrite import replace
from .loops.lower import lower
from .loops.reorder import merge, reorder
from .loops.split import split_outer
from .loops.verify import Stage, verify
from .options import Options
from .report import Dump, declined, describe, fused
from .schedule import cost
from .schedule.device import device_info
from .schedule.heuristics import choose, workload

log = logging.getLogger("mixorder")
T = TypeVar("T")


def run(graph: Graph, options: Options) -> None:
    """Fuse every region of a functional post-grad graph, in place. Raises only in strict mode."""
    if not _has_usable_device(graph, options):
        return
    dump = Dump(options.dump_dir)
    regions = find_regions(graph)
    while True:
        runner = _Runner(options, dump)
        found: Region | Decline | None = None
        try:
            found = runner.step("find", next, regions, None)
            if found is None:
                break
            try:
                if isinstance(found, Decline):
                    raise found
                runner.region = found.name
                try:
                    fuse(graph, found, options, runner)
                except Decline:
                    if found.smaller is None:
                        raise
                    fuse(graph, found.smaller, options, runner)
            except Decline as decline:
                declined(decline)
                runner.dump("declined.txt", decline)
        except MixorderError as error:
            if options.strict:
                raise
            _warn_once(str(error))
            if found is None:
                break  # the search itself failed: there is nothing to go on with


def fuse(graph: Graph, region: Region, options: Options, runner: _Runner) -> None:
    """Take one region from the graph to its kernels. Raises `Decline`, or `MixorderError` on a bug."""
    step, show = runner.step, runner.dump
    show("fx.txt", graph)
    show("region.txt", region)
    step("legality", legality.check, region)
    loops = show("loops.txt", step("lower", lower, region), Stage.LOWERED)
    loops = show("split.txt", step("split", split_outer, loops), Stage.SPLIT)
    loops = show("reordered.txt", step("reorder", reorder, loops), Stage.REORDERED)
    loops = show("merged.txt", step("merge", merge, loops), Stage.MERGED)
    device = step("device", device_info, legality.device_of(region))
    work = step("workload", workload, loops)
    step("layout", cost.check_coalesced, loops)
    step("cost", cost.gate, work.rows * work.cols * work.kept, options.min_numel)
    schedule = show(
        "schedule.txt", step("schedule", choose, work, device, options.split_size, options.autotune)
    )
    kernels = step("codegen", generate, loops, schedule, step("label", label, region))
    show("kernel.py", "\n\n".join(k.text for k in kernels))
    record = step("report", describe, region, schedule, kernels)
    step("rewrite", replace, graph, region, loops, kernels, schedule.num_splits)
    show("fx_after.txt", graph)
    fused(record)


class _Runner:
    """Runs stages for one region: what is neither a result nor a `Decline` is a bug, and says where."""

    def __init__(self, options: Options, dump: Dump) -> None:
        self.options = options
        self.files = dump
        self.region = "graph"

    def step(self, stage: str, function: Callable[..., T], *args: Any) -> T:
        try:
            return function(*args)
        except Decline:
            raise
        except Exception as error:
            raise MixorderError(stage, self.region, error) from error

    def dump(self, name: str, value: T, stage: Stage | None = None) -> T:
        if stage is not None and self.options.strict:
            self.step("verify", verify, value, stage)
        self.step("dump", self.files.write, self.region, name, value)
        return value


def label(region: Region) -> str:
    """What the kernels' names say was fused: the ATen ops that the reductions come from."""
    ops = dict.fromkeys(
        str(n.meta["original_aten"]).split(".")[1] if "original_aten" in n.meta else "sum"
        for n in (*region.inner, *region.outer)
    )
    return re.sub(r"\W+", "_", "_".join(ops))[:64]


def _has_usable_device(graph: Graph, options: Options) -> bool:
    """Whether the graph has tensors that our kernels can take; says once if not."""
    types = {val.device.type for node in graph.nodes if isinstance(val := node.meta.get("val"), torch.Tensor)}
    if "cuda" in types:
        from torch.utils._triton import has_triton

        if not has_triton():
            _say_once("mixorder does nothing: Triton cannot drive this GPU")
        return has_triton()
    if "cpu" in types and options.interpret:
        return True
    if types:
        _say_once(f"mixorder does nothing for a graph on {', '.join(sorted(types))}: it needs a GPU")
    return False


@functools.cache
def _say_once(message: str) -> None:
    log.warning(message)


@functools.cache
def _warn_once(message: str) -> None:
    warnings.warn(message, stacklevel=3)
