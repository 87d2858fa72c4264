"""The table of contents: every stage that a graph goes through, in order.

`run` is the post-grad pass. Up to the rewrite no stage changes the graph, so a region that is declined, or
that a bug stops, leaves it as it was; Inductor carries on with what is there.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import re
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

import torch
from torch._inductor import config
from torch.fx import Graph

from .codegen.kernel import generate
from .codegen.op_printer import check_printable
from .codegen.source import KernelSource
from .errors import Decline, MixorderError, TooWide
from .ir.program import LoopProgram
from .ir.verify import Stage, verify
from .lowering.lower import lower
from .options import Options
from .record import RegionRecord, describe
from .region import legality
from .region.effects import may_be_reordered
from .region.find import RegionSearch, find_regions
from .region.key import structural_key
from .region.liveness import dead_after
from .region.nodes import leaves_the_graph
from .region.partition import partition, without_culprit, without_gathers
from .region.provenance import provenance_of
from .region.region import Region
from .report import Dump, declined, finished, fused
from .rewrite.rewrite import replace
from .schedule import cost
from .schedule.cooperative import choose_shared, shared_workload
from .schedule.device import DeviceInfo, device_info
from .schedule.persistent import STRATEGIES, Workload, choose, workload
from .schedule.predicted import expected
from .schedule.schedule import Schedule
from .transform.cooperative import check_shareable, share
from .transform.fma import contract
from .transform.in_place import overwrite
from .transform.reorder import merge, reorder
from .transform.reread import reload
from .transform.split import split_outer
from .tune.search import Tuning
from .tune.tuner import Problem, tune, wanted

log = logging.getLogger("mixorder")
T = TypeVar("T")


def run(graph: Graph, options: Options) -> list[RegionRecord]:
    """Fuse every region of a functional post-grad graph, in place; gives their records. Raises only in strict
    mode."""
    if not _has_usable_device(graph, options):
        return []
    started = time.perf_counter()
    dump = Dump(options.dump_dir)
    known: dict[Hashable, Any] = {}
    ends: list[RegionRecord | Decline] = []
    regions = find_regions(graph)
    found: Region | Decline | None = None
    while True:
        runner = _Runner(options, dump, known)
        try:
            taken, found = (found if isinstance(found, Region) else None), None
            found = runner.step("find", _send, regions, taken)
            if found is None:
                break
            try:
                if isinstance(found, Decline):
                    raise found
                runner.region = found.name
                found, record = fuse(graph, found, options, runner)
                fused(record)
                ends.append(record)
            except Decline as decline:
                if isinstance(found, Region):
                    decline.provenance = provenance_of((*found.inner, *found.outer))
                declined(decline)
                ends.append(decline)
                runner.dump("declined.txt", decline)
        except MixorderError as error:
            if options.strict:
                raise
            _warn_once(str(error))
            if found is None:
                break  # the search itself failed: there is nothing to go on with
    finished(ends, time.perf_counter() - started)
    return [end for end in ends if isinstance(end, RegionRecord)]


def may_lose_order(graph: Graph) -> bool:
    """Whether Inductor may launch two effects of a graph in another order, such as random operators."""
    return may_be_reordered(graph)


def fuse(graph: Graph, region: Region, options: Options, runner: _Runner) -> tuple[Region, RegionRecord]:
    """Take one region from the graph to its kernels; returns it, or the smaller one that was taken instead,
    and its record.

    Raises `Decline`, or `MixorderError` on a bug.
    """
    step, show = runner.step, runner.dump
    show("fx.txt", graph)
    plan = fit_or_leave_out(region, options, runner)
    region = plan.region
    alone = not region.inner
    step("cost", cost.gate, plan.work.numel, plan.work.rows, plan.traffic, options.min_numel, alone)
    named = step("label", label, region)
    key = plan.key and (plan.key, named)
    plan = runner.once(key and ("tuned", key), lambda: tuned(plan, named, options, runner)).of(region)
    loops, schedule = plan.loops, plan.schedule
    if schedule.parts == 1:  # or another turn would read what the first has written
        over = step("overwrite", overwrite, loops, step("dying", dead_after, region))
        loops = loops if over == loops else show("overwriting.txt", over, Stage.MERGED)
    key = key and (key, tuple(b.over for b in loops.buffers))
    kernels = runner.once(key, lambda: step("codegen", generate, loops, schedule, named))
    show("kernel.py", "\n\n".join(k.text for k in kernels))
    record = step("report", record_of, plan, loops, kernels)
    step("rewrite", replace, graph, region, loops, kernels, schedule.num_splits)
    show("fx_after.txt", graph)
    return region, dataclasses.replace(record, stage_ms=runner.stage_ms)


def record_of(plan: Plan, loops: LoopProgram, kernels: tuple[KernelSource, ...]) -> RegionRecord:
    """What there is to say of a region that is about to be rewritten; `loops` are the plan's, overwriting."""
    region, copies = plan.region, sum(node in plan.region.made_contiguous for node in plan.region.inputs)
    takes = expected(plan.lowered, loops, plan.schedule, plan.traffic, plan.device, copies)
    return describe(region, (plan.lowered, loops), plan.schedule, kernels, plan.traffic, takes, plan.tuning)


@dataclasses.dataclass(frozen=True)
class Plan:
    """How a region would be run, and what that takes; all but the region is the same for all with its key.

    `relaid`: the buffers of the region's relaid nodes. `lowered`: its loops before any rewrite; `held`: as
    programs that hold their rows run them.
    """

    key: Hashable | None
    region: Region
    relaid: tuple[str, ...]
    loops: LoopProgram
    work: Workload
    schedule: Schedule
    traffic: cost.Traffic
    lowered: LoopProgram
    held: LoopProgram
    device: DeviceInfo
    tuning: Tuning | None = None

    def of(self, region: Region) -> Plan:
        """The plan for another region of the same structure."""
        if self.relaid:
            relaid = frozenset(region.buffers[name] for name in self.relaid)
            region = dataclasses.replace(region, made_contiguous=relaid)
        return dataclasses.replace(self, region=region)


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
        tried = runner.step("cut", partition, narrowest)
        if not tried:
            raise refusal


def fit_or_leave_out(region: Region, options: Options, runner: _Runner) -> Plan:
    """The plan of a region or, where that is declined, of what is left of it without what stands in the way:
    operators that cannot be lowered, then gathers."""
    try:
        return fit(region, options, runner)
    except Decline as decline:
        if (smaller := runner.step("cut", without_culprit, region, decline)) is not None:
            return fit_or_leave_out(smaller, options, runner)
        if (plain := runner.step("cut", without_gathers, region)) is None:
            raise
    return fit(plain, options, runner)


def written_for_a_cut(plan: Plan, whole: Region) -> int:
    """Bytes of what a part of a region writes and the whole region does not."""
    cut = [name for name, n in plan.region.buffers.items() if name[:3] == "out" and n not in whole.outputs]
    return cost.size(plan.loops, cut)


def plan_of(region: Region, options: Options, runner: _Runner) -> Plan | TooWide:
    """The plan of this very region; a region of the same structure may have been planned already."""
    runner.step("legality", legality.check, region)
    key = runner.step("structure", structural_key, region)
    plan = runner.once(key, lambda: new_plan(key, region, options, runner))
    if isinstance(plan, TooWide):
        return plan
    return plan.of(region)


def new_plan(key: Hashable | None, region: Region, options: Options, runner: _Runner) -> Plan | TooWide:
    """Every stage up to the schedule."""
    step, show = runner.step, runner.dump
    lowered, loops = loops_of(region, runner)
    copied: tuple[str, ...] = ()
    across: tuple[str, ...]
    if across := step("layout", cost.across_memory, loops):
        nodes = {name: region.buffers[name] for name in across}
        copied = tuple(b for b, n in nodes.items() if n in region.inputs or leaves_the_graph(n))
        step("layout", cost.check_layout, loops, copied)
        region = dataclasses.replace(region, made_contiguous=frozenset(nodes.values()))
        lowered, loops = loops_of(region, runner)
    device = step("device", device_info, legality.device_of(region))
    work = step("workload", workload, loops)
    ways: dict[str, Callable[[], tuple[LoopProgram, Schedule]]] = {
        "held": lambda: (loops, step("schedule", choose, work, device, options.split_size)),
        "shared": lambda: shared(loops, device, options, runner),
        "twice": lambda: reloaded(loops, device, options, runner),
    }
    refused: dict[str, Any] = {}
    for strategy in STRATEGIES:
        try:
            nests, schedule = ways[strategy]()
            break
        except Decline as refusal:
            refused[strategy] = refusal
    else:
        return refused["held"]  # what to cut is what one program holds too much of
    show("schedule.txt", schedule)
    moved = step("cost", cost.traffic, lowered, nests, schedule.num_splits, copied)
    return Plan(key, region, across, nests, work, schedule, moved, lowered, loops, device)


def tuned(plan: Plan, named: str, options: Options, runner: _Runner) -> Plan:
    """The plan with the schedule that timing finds fastest; as it is where tuning is off or fails."""
    step, region = runner.step, plan.region
    try:
        if not step("tune", wanted, options):
            return plan
        held, device = plan.held, step("device", legality.device_of, region)
        problem = Problem(
            region.name, named, held, plan.loops, plan.schedule, device, plan.device, options.split_size
        )
        found = step("tune", tune, problem)
        if found is None:
            return plan
        workspace = step("cost", cost.workspace_bytes, found.loops, found.schedule.num_splits)
    except MixorderError as error:
        if options.strict:
            raise
        _warn_once(str(error))
        return plan
    moved = dataclasses.replace(plan.traffic, workspace=workspace)
    runner.dump("tuned.txt", f"{found.tuning}\n{found.schedule}")
    return dataclasses.replace(
        plan, loops=found.loops, schedule=found.schedule, traffic=moved, tuning=found.tuning
    )


def shared(
    loops: LoopProgram, device: DeviceInfo, options: Options, runner: _Runner
) -> tuple[LoopProgram, Schedule]:
    """The loops for several programs per row."""
    step = runner.step
    step("share", check_shareable, loops)
    work = step("workload", shared_workload, loops)
    schedule = step("schedule", choose_shared, work, device, options.split_size)
    nests = step("share", share, loops, schedule.parts, schedule.tile.xblock, schedule.period)
    return runner.dump("shared.txt", nests, Stage.SHARED), schedule


def reloaded(
    loops: LoopProgram, device: DeviceInfo, options: Options, runner: _Runner
) -> tuple[LoopProgram, Schedule]:
    """The loops that read a row again after each reduction."""
    nests = runner.step("reload", reload, loops)
    work = runner.step("workload", workload, nests)
    schedule = runner.step("schedule", choose, work, device, options.split_size)
    return runner.dump("reloaded.txt", nests, Stage.MERGED), schedule


def loops_of(region: Region, runner: _Runner) -> tuple[LoopProgram, LoopProgram]:
    """The region's loops as they are lowered, and as the main kernel and the finalisation run them."""
    step, show = runner.step, runner.dump
    show("region.txt", region)
    lowered = show("loops.txt", step("lower", lower, region), Stage.LOWERED)
    step("lower", check_printable, lowered)
    loops = show("split.txt", step("split", split_outer, lowered), Stage.SPLIT)
    loops = show("reordered.txt", step("reorder", reorder, loops), Stage.REORDERED)
    loops = step("merge", merge, loops)
    if not config.emulate_precision_casts:  # which rounds every product, as eager does
        loops = step("contract", contract, loops)
    return lowered, show("merged.txt", loops, Stage.MERGED)


class _Runner:
    """Runs stages for one region: what is neither a result nor a `Decline` is a bug, and says where.

    `known`: results by key, of this region and those before it in the graph.
    """

    def __init__(self, options: Options, dump: Dump, known: dict[Hashable, Any]) -> None:
        self.options = options
        self.files = dump
        self.known = known
        self.region = "graph"
        self.seconds: dict[str, float] = defaultdict(float)

    def step(self, stage: str, function: Callable[..., T], *args: Any) -> T:
        started = time.perf_counter()
        try:
            return function(*args)
        except Decline:
            raise
        except Exception as error:
            raise MixorderError(stage, self.region, error) from error
        finally:
            self.seconds[stage] += time.perf_counter() - started

    @property
    def stage_ms(self) -> tuple[tuple[str, float], ...]:
        return tuple((stage, 1e3 * seconds) for stage, seconds in self.seconds.items())

    def once(self, key: Hashable | None, make: Callable[[], T]) -> T:
        """What `make` gave for the key the first time; made anew without a key, and for dumps of each."""
        if key is None or self.options.dump_dir:
            return make()
        if key not in self.known:
            self.known[key] = make()
        return self.known[key]

    def dump(self, name: str, value: T, stage: Stage | None = None) -> T:
        if stage is not None and self.options.strict:
            self.step("verify", verify, value, stage)
        self.step("dump", self.files.write, self.region, name, value)
        return value


def _send(regions: RegionSearch, taken: Region | None) -> Region | Decline | None:
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
