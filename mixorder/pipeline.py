"""The table of contents: every stage that a graph goes through, in order.

`run` is the post-grad pass. Up to the rewrite no stage changes the graph, so a region that is declined, or
that a bug stops, leaves it as it was; Inductor carries on with what is there.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import re
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch.fx import Graph

from .codegen.kernel import generate
from .errors import Decline, MixorderError, TooWide
from .graph import legality
from .graph.cut import parts, without_gathers
from .graph.dying import dying
from .graph.find import Found, find_regions
from .graph.nodes import leaves_the_graph
from .graph.region import Region
from .graph.rewrite import replace
from .loops.ir import LoopProgram
from .loops.lower import lower
from .loops.overwrite import overwrite
from .loops.reload import reload
from .loops.reorder import merge, reorder
from .loops.split import split_outer
from .loops.verify import Stage, verify
from .options import Options
from .report import Dump, declined, describe, fused
from .schedule import cost
from .schedule.device import DeviceInfo, device_info
from .schedule.heuristics import Workload, choose, workload
from .schedule.schedule import Schedule

log = logging.getLogger("mixorder")
T = TypeVar("T")


def run(graph: Graph, options: Options) -> None:
    """Fuse every region of a functional post-grad graph, in place. Raises only in strict mode."""
    if not _has_usable_device(graph, options):
        return
    dump = Dump(options.dump_dir)
    regions = find_regions(graph)
    found: Region | Decline | None = None
    while True:
        runner = _Runner(options, dump)
        try:
            taken, found = (found if isinstance(found, Region) else None), None
            found = runner.step("find", _send, regions, taken)
            if found is None:
                break
            try:
                if isinstance(found, Decline):
                    raise found
                runner.region = found.name
                found = fuse(graph, found, options, runner)
            except Decline as decline:
                declined(decline)
                runner.dump("declined.txt", decline)
        except MixorderError as error:
            if options.strict:
                raise
            _warn_once(str(error))
            if found is None:
                break  # the search itself failed: there is nothing to go on with


def fuse(graph: Graph, region: Region, options: Options, runner: _Runner) -> Region:
    """Take one region from the graph to its kernels; returns it, or the smaller one that was taken instead.

    Raises `Decline`, or `MixorderError` on a bug.
    """
    step, show = runner.step, runner.dump
    show("fx.txt", graph)
    try:
        plan = fit(region, options, runner)
    except Decline:
        if (plain := step("cut", without_gathers, region)) is None:
            raise
        plan = fit(plain, options, runner)
    region, loops, schedule = plan.region, plan.loops, plan.schedule
    step("cost", cost.gate, plan.work.numel, plan.work.rows, plan.traffic, options.min_numel)
    if not options.autotune:  # Triton would time several configurations on the input that one overwrites
        over = step("overwrite", overwrite, loops, step("dying", dying, region))
        loops = loops if over == loops else show("overwriting.txt", over, Stage.MERGED)
    kernels = step("codegen", generate, loops, schedule, step("label", label, region))
    show("kernel.py", "\n\n".join(k.text for k in kernels))
    record = step("report", describe, region, schedule, kernels, plan.traffic)
    step("rewrite", replace, graph, region, loops, kernels, schedule.num_splits)
    show("fx_after.txt", graph)
    fused(record)
    return region


@dataclasses.dataclass(frozen=True)
class Plan:
    """How a region would be run, and what that takes."""

    region: Region
    loops: LoopProgram
    work: Workload
    schedule: Schedule
    traffic: cost.Traffic


def fit(region: Region, options: Options, runner: _Runner) -> Plan:
    """The plan of a region or, where it holds too much, of the part of it that saves the most bytes."""
    tried = [region]
    while True:
        plans: list[Plan] = []
        held: list[tuple[int, Region]] = []
        for part in tried:
            plan = plan_of(part, options, runner)
            if isinstance(plan, Plan):
                plans.append(plan)
            else:
                held.append((plan.words, part))
                refusal = plan
        if plans:
            # What a cut makes a part write, somebody reads: bytes that the whole region would not move.
            return max(plans, key=lambda plan: plan.traffic.saved - 2 * written_for_a_cut(plan, region))
        _, narrowest = min(held, key=lambda words_and_part: words_and_part[0])
        tried = runner.step("cut", parts, narrowest)
        if not tried:
            raise refusal


def written_for_a_cut(plan: Plan, whole: Region) -> int:
    """Bytes of what a part of a region writes and the whole region does not."""
    cut = [name for name, n in plan.region.buffers.items() if name[:3] == "out" and n not in whole.outputs]
    return cost.size(plan.loops, cut)


def plan_of(region: Region, options: Options, runner: _Runner) -> Plan | TooWide:
    """Every stage up to the schedule."""
    step, show = runner.step, runner.dump
    step("legality", legality.check, region)
    lowered, loops = loops_of(region, runner)
    copied: tuple[str, ...] = ()
    if across := step("layout", cost.across_memory, loops):
        nodes = {name: region.buffers[name] for name in across}
        copied = tuple(b for b, n in nodes.items() if n in region.inputs or leaves_the_graph(n))
        step("layout", cost.check_layout, loops, copied)
        region = dataclasses.replace(region, relaid=frozenset(nodes.values()))
        lowered, loops = loops_of(region, runner)
    device = step("device", device_info, legality.device_of(region))
    nests = loops
    try:
        work, schedule = scheduled(nests, device, options, runner)
    except TooWide:
        nests = step("reload", reload, loops)
        try:
            work, schedule = scheduled(nests, device, options, runner)
        except TooWide as refusal:
            return refusal
        show("reloaded.txt", nests, Stage.MERGED)
    show("schedule.txt", schedule)
    moved = step("cost", cost.traffic, lowered, nests, schedule.num_splits, copied)
    return Plan(region, nests, work, schedule, moved)


def scheduled(
    loops: LoopProgram, device: DeviceInfo, options: Options, runner: _Runner
) -> tuple[Workload, Schedule]:
    work = runner.step("workload", workload, loops)
    return work, runner.step("schedule", choose, work, device, options.split_size, options.autotune)


def loops_of(region: Region, runner: _Runner) -> tuple[LoopProgram, LoopProgram]:
    """The region's loops as they are lowered, and as the main kernel and the finalisation run them."""
    step, show = runner.step, runner.dump
    show("region.txt", region)
    lowered = show("loops.txt", step("lower", lower, region), Stage.LOWERED)
    loops = show("split.txt", step("split", split_outer, lowered), Stage.SPLIT)
    loops = show("reordered.txt", step("reorder", reorder, loops), Stage.REORDERED)
    return lowered, show("merged.txt", step("merge", merge, loops), Stage.MERGED)


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


def _send(regions: Found, taken: Region | None) -> Region | Decline | None:
    """What the search finds next, told what became of the last region; None at its end."""
    try:
        return regions.send(taken)
    except StopIteration:
        return None


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
