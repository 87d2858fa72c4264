"""The table of contents: every stage that a graph goes through, in order.

`run` is the post-grad pass; `fuse` takes one region from the graph to its kernels; `build` has the stages
from the region to its loops and their schedule. Before regions are looked for, sizes are taken from the
graph's inputs, and some nodes are canonicalised to reductions. Those that no region takes are restored at the
end. No other stage before the rewrite changes the graph: a region that is declined, or that a bug stops,
leaves it to Inductor as it was. `mark_joint` sees forward and backward before they are divided.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Hashable, Iterator
from typing import Any, TypeVar

from torch.fx import Graph, Node

from .codegen.op_printer import check_printable
from .errors import Decline, DeclineReason, MixorderError
from .inductor.config import emulates_precision_casts, promises_bits, retraces_backward
from .inductor.symbols import guarded
from .ir.program import LoopProgram
from .ir.verify import Form, check_stores
from .lowering.lower import lower
from .lowering.tile import lower_tile
from .options import Options
from .planning import (
    RegionPlan,
    Setting,
    by_first_strategy,
    check_layout,
    check_time,
    setting_in_force,
    tuned,
    with_contiguous,
)
from .record import RegionRecord
from .region.checkpointed import other_sums, readers_in_half_precision, small_sums
from .region.comparisons import masks, roundings
from .region.find import RegionSearch, find_regions, next_region
from .region.layouts import is_joined
from .region.legality import device_of, has_usable_device
from .region.liveness import dead_after, read_after
from .region.operators import contracted
from .region.padding import is_filled
from .region.peak_memory import Change, Timeline
from .region.provenance import label, located
from .region.region import Region
from .report import Dump, declined, finished, fused
from .rewrite.canonicalise import Canonicaliser
from .rewrite.joint import Marks, mark
from .rewrite.launches import check_launches
from .rewrite.rewrite import copy_slices, replace
from .rewrite.sizes import sizes_from_inputs
from .runner import Runner
from .schedule import cost
from .schedule.device import DeviceInfo, device_info
from .schedule.predicted import Case
from .search import Search
from .transform.fma import form_fma
from .transform.in_place import reuse_in_place
from .transform.one_hot import sum_one_hot
from .transform.operators import contract
from .transform.relative import in_two_steps
from .transform.reorder import reorder
from .transform.same_bits import simplify_exactly
from .transform.split import split_outer

T = TypeVar("T")


def run(graph: Graph, options: Options, setting: Setting | None = None) -> list[RegionRecord]:
    """Fuse every region of a functional post-grad graph, in place, and return their records. Raises only in
    strict mode. `setting`: None for the one in force."""
    setting = setting or setting_in_force()
    if not has_usable_device(graph, options.interpret):
        return []
    canonicaliser, runner = Canonicaliser(graph), Runner(options, Dump(""), {})
    with guarded(graph):
        try:
            _or_warn(runner, "canonicalise", sizes_from_inputs, graph)
            _or_warn(runner, "canonicalise", canonicaliser.begin)
            search = functools.partial(find_regions, graph, canonicaliser.joining)
            return _or_warn(runner, "search", _run, graph, search, options, setting) or []
        finally:
            _or_warn(runner, "canonicalise", canonicaliser.end)
            _or_warn(runner, "canonicalise", copy_slices, graph)
            _or_warn(runner, "launches", check_launches, graph)


def mark_joint(graph: Graph, options: Options) -> bool:
    """Mark in a joint graph what its forward and its backward have to agree on: values in half precision that
    it compares round as eager does, small sums are not recomputed, and no region has the others that are.
    Masks of activations can be computed from what the backward reads anyway. Returns whether the graph's code
    has changed. Raises only in strict mode, with the graph as it was."""
    runner = Runner(options, Dump(""), {})

    def compared() -> Marks:
        return Marks(rounding=roundings(graph))

    def saved() -> Marks:
        sums = small_sums(graph)
        rounding = [reader for node in sums for reader in readers_in_half_precision(node)]
        return Marks(saved=sums, rounding=rounding, left=other_sums(graph, sums))

    def masked() -> Marks:
        if emulates_precision_casts() or promises_bits() or retraces_backward():
            return Marks()
        return Marks(masks=list(masks(graph, options.min_numel)))

    def marked() -> bool:
        if not has_usable_device(graph, options.interpret):
            return False
        results = (
            _or_warn(runner, "round", compared),
            _or_warn(runner, "save", saved),
            _or_warn(runner, "mask", masked),
        )
        return mark(graph, [marks for marks in results if marks])

    return bool(_or_warn(runner, "mark", marked))


def _or_warn(runner: Runner, stage: str, function: Callable[..., T], *args: Any) -> T | None:
    """The result of a stage; None if it fails."""
    try:
        return runner.step(stage, function, *args)
    except MixorderError as error:
        runner.warn(error)
    except Decline as decline:
        declined(decline)
    return None


def _run(
    graph: Graph, search: Callable[[], RegionSearch], options: Options, setting: Setting
) -> list[RegionRecord]:
    """Fuse the regions that a search finds. Of a pair whose rows are too wide, and whose sums are fused over
    reduction groups, nothing is told."""
    started = time.perf_counter()
    attempts = list(_fuse_each(graph, search(), options, setting))
    taken = [_reductions(candidate) for candidate, outcome in attempts if isinstance(outcome, RegionRecord)]

    def is_taken(candidate: Region | Decline, outcome: RegionRecord | Decline) -> bool:
        is_wide = isinstance(outcome, Decline) and outcome.reason is DeclineReason.ROW_TOO_WIDE
        return (
            is_wide
            and isinstance(candidate, Region)
            and any(_reductions(candidate) <= reductions for reductions in taken)
        )

    outcomes = [outcome for candidate, outcome in attempts if not is_taken(candidate, outcome)]
    for outcome in outcomes:
        if isinstance(outcome, RegionRecord):
            fused(outcome)
        else:
            declined(outcome)
    finished(outcomes, time.perf_counter() - started)
    return [outcome for outcome in outcomes if isinstance(outcome, RegionRecord)]


def _reductions(candidate: Region | Decline) -> set[Node]:
    return {*candidate.inner, *candidate.outer} if isinstance(candidate, Region) else set()


def _fuse_each(
    graph: Graph, regions: RegionSearch, options: Options, setting: Setting
) -> Iterator[tuple[Region | Decline, RegionRecord | Decline]]:
    """Fuse what a search finds. Yields each with its end."""
    memory = functools.cache(lambda: Timeline(graph))  # only for a graph with a region
    known = dict[Hashable, Any]()
    taken: Region | Decline | None = None
    while True:
        runner = Runner(options, Dump(options.dump_dir), known)
        candidate: Region | Decline | None = None
        try:
            candidate = runner.step("find", next_region, regions, taken)
            if candidate is None:
                return
            taken = None
            try:
                taken, record = runner.step("fuse", fuse, graph, candidate, memory, runner, setting)
                yield candidate, record
            except Decline as decline:
                taken = decline
                runner.show("declined.txt", decline)
                yield candidate, located(decline.kept(), candidate)
        except Decline as decline:  # of the search itself: there is no next region
            yield decline, decline.kept()
            return
        except MixorderError as error:
            runner.warn(error)
            if candidate is None:
                return


def fuse(
    graph: Graph,
    candidate: Region | Decline,
    memory: Callable[[], Timeline],
    runner: Runner,
    setting: Setting,
) -> tuple[Region, RegionRecord]:
    """Take one region from the graph to its kernels. Returns the region, or the part of it that was fused,
    and its record. Raises `Decline`, or `MixorderError` on a bug."""
    if isinstance(candidate, Decline):
        raise candidate
    step, show = runner.step, runner.show
    runner.region = candidate.name
    show("fx.txt", graph)
    timeline = step("memory", memory)
    chosen, change = planned(candidate, timeline, runner, setting)
    region = chosen.region
    named = step("label", label, region)
    key = chosen.key and (chosen.key, named)
    chosen = runner.once(key and ("tuned", key), lambda: tuned(chosen, named, setting.strategies, runner)).of(
        region
    )
    step("gate", check_time, chosen, runner.options.min_numel)
    loops, schedule, strategy = in_place(chosen, timeline, runner), chosen.schedule, chosen.strategy
    if loops != chosen.loops:
        show("in_place.txt", loops, strategy.form)
    loops = step("liveness", with_reread, loops, region, change.place, timeline)
    key = key and (key, tuple((b.over, b.reread) for b in loops.buffers))
    runner.once(key and ("covered", key), lambda: step("verify", check_stores, loops))
    kernels = runner.once(key, lambda: step("codegen", strategy.generate, loops, schedule, named))
    show("kernel.py", "\n\n".join(k.text for k in kernels))
    record = step("report", chosen.record, loops, kernels)
    results = step("rewrite", replace, graph, region, loops, kernels, schedule.splits)
    step("memory", timeline.commit, change, results)
    show("fx_after.txt", graph)
    peak = change.before, change.after
    planning = dataclasses.replace(record.planning, peak=peak, stage_ms=runner.stage_ms)
    return region, dataclasses.replace(record, planning=planning)


def planned(
    candidate: Region, timeline: Timeline, runner: Runner, setting: Setting
) -> tuple[RegionPlan, Change]:
    """The plan of a region or of another that takes less time, or less memory at the graph's peak. Raises the
    region's `Decline` if there is none."""
    make = functools.partial(build, runner=runner, setting=setting)
    fits = functools.partial(within_peak, timeline=timeline, runner=runner)
    return Search(candidate, make, fits, timeline.stored, runner).best()


def within_peak(chosen: RegionPlan, timeline: Timeline, runner: Runner) -> Change:
    """What a plan does to the graph's memory. Raises `Decline` if that is more than stock's peak."""
    region = chosen.region
    loops = in_place(chosen, timeline, runner)
    over = [region.buffers[b.over] for b in loops.buffers if b.over]
    change = timeline.change(region, over)
    if not timeline.fits(change):
        detail = f"{change.after / 1e6:.1f} MB at the peak instead of {timeline.fused / 1e6:.1f}"
        raise Decline(DeclineReason.MEMORY, detail, (region.outer or region.outputs)[0].name)
    return change


def in_place(chosen: RegionPlan, timeline: Timeline, runner: Runner) -> LoopProgram:
    """A plan's loops, with results in the memory of inputs that are dead after it."""
    if not chosen.strategy.in_place(chosen.loops):
        return chosen.loops
    region = chosen.region
    dead = runner.step("liveness", dead_after, region, timeline.writable)
    own_memory = runner.step("liveness", _with_own_memory, region)
    return runner.step("in_place", reuse_in_place, chosen.loops, dead, own_memory)


def _with_own_memory(region: Region) -> list[str]:
    """The outputs, by name, that lie in no input's memory: the graph fills their gaps, or they are slices of
    another tensor."""
    named = region.buffers.items()
    return [
        name for name, n in named if n in region.cat_slices or (n in region.output_strides and is_filled(n))
    ]


def with_reread(loops: LoopProgram, region: Region, place: int, timeline: Timeline) -> LoopProgram:
    """A region's loops, in which the inputs are marked that something reads after the launch."""
    still_read = read_after(region, place, timeline.index, timeline.stored)
    buffers = (dataclasses.replace(b, reread=b.name in still_read) for b in loops.buffers)
    return dataclasses.replace(loops, buffers=tuple(buffers))


def build(key: Hashable | None, region: Region, runner: Runner, setting: Setting) -> RegionPlan | Decline:
    """The loops of a region and their schedule, by the first strategy that accepts it. Returns a `Decline`
    if none has a plan, and raises every other one."""
    step, show = runner.step, runner.show
    across: tuple[str, ...] = ()
    device = setting.device or step("device", device_info, device_of(region))
    lowered, merged = loops_of(region, device, runner)
    copied: tuple[str, ...] = ()
    if region.orders is None and (across := step("layout", cost.across_memory, merged)):
        copied, free = step("layout", check_layout, region, merged, across)
        if free:
            lowered, _ = loops_of(with_contiguous(region, free), device, runner)
        region = with_contiguous(region, across)
        _, merged = loops_of(region, device, runner)  # Inductor needs no copies: `lowered` is without
    chosen = by_first_strategy(merged, device, setting.strategies, runner)
    if isinstance(chosen, Decline):
        return chosen
    strategy, loops, facts, schedule = chosen.strategy, chosen.loops, chosen.facts, chosen.schedule
    show("plan.txt", schedule)
    if loops is not merged:
        show(f"{strategy.name}.txt", loops, strategy.form)
    traffic = step("cost", cost.traffic, loops, schedule.partials, copied, _joined(region))
    takes = step("cost", strategy.predict, Case(lowered, loops, schedule, facts, traffic, device))
    return RegionPlan(
        strategy, loops, facts, schedule, key, region, across, lowered, merged, traffic, device, takes
    )


def _joined(region: Region) -> list[str]:
    """The large results that the graph copies into one tensor, by their names in the region's loops."""
    copied = [(i, node) for i, node in enumerate(region.outputs) if node not in region.cat_slices]
    full = region.seed.analysis.is_full
    return [f"out{i}" for i, node in copied if full(node) and is_joined(node, region.nodes)]


def loops_of(region: Region, device: DeviceInfo, runner: Runner) -> tuple[LoopProgram, LoopProgram]:
    """The region's loops as lowered, and merged into one nest over rows and the finalisation."""
    step, show = runner.step, runner.show
    show("region.txt", region)
    if region.orders is not None:
        program = step("lower", lower_tile, region)
        program = show("loops.txt", step("relative", in_two_steps, program, None), Form.TILE_LOCAL)
        step("lower", check_printable, program)
        if program.over_reduction_groups:
            return program, program
        pairs = step("contract", contracted, region)
        return program, step(
            "contract", contract, program, {total.name: product.name for product, total in pairs}
        )
    lowered = show("loops.txt", step("lower", lower, region), Form.LOWERED)
    step("lower", check_printable, lowered)
    loops = step("relative", in_two_steps, lowered)
    loops = step("one_hot", sum_one_hot, loops)
    loops = show("split.txt", step("split", split_outer, loops), Form.MERGED)
    loops = step("same_bits", simplify_exactly, loops, device.saturates, device.runs_ptx)
    loops = step("reorder", reorder, loops)
    if not emulates_precision_casts():  # that setting rounds every product, as eager does
        loops = step("fma", form_fma, loops)
    return lowered, show("merged.txt", loops, Form.MERGED)
