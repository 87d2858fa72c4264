"""Process replay: what the pass makes of a fixed set of graphs, by this tree and by an older commit.

    python tools/replay.py --base main~3 [--every 13]       # what changed, and the first differing text
    python tools/replay.py --write FILE                     # what this tree makes, a line of JSON a graph
    python tools/replay.py --without [RULE ...]             # what rules, passes and strategies are good for
    python tools/replay.py --capture                        # traces the whole graphs again

The graphs are the corpus' subgraphs, the casts of `tools/quantise.py`, norms at the sizes of
`tools/bench.py`, and norms over reduction groups, each planned for four devices; and whole graphs of models,
cases and casts (`lab/subgraphs.py`) for one. Planning and code generation are pure functions, so that a
refactoring changes nothing here, and any other change shows which plans and kernels it reaches. Digests of
some are in `tests/tools/replay.json`, what becomes of whole graphs is in `tests/tools/outcomes`, and tests
compare them. Needs no GPU. Exit status: 0, or 1 if something differs.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import hashlib
import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
CORPUS = ROOT / "tools" / "data" / "corpus.jsonl.xz"
GRAPHS = CORPUS.with_name("graphs.jsonl.xz")
CASTS = ((4096, 4096), (16384, 4096))
NORMS = ((4096, 4096), (32768, 768), (8192, 8192), (32768, 4097), (2048, 65536), (1048576, 128))
GROUPS = ((8, 4096, 320, 32), (64, 256, 1024, 32), (200, 4096, 64, 32))
BATCHES = ((401408, 64), (100352, 256), (100003, 13))
DEVICES = ("H200", "A100", "H100", "MI300")  # of tests/devices.py
TRACED_S = 600  # a program that takes longer has no graphs
PARTS = ("ends", "plan", "kernel", "graph", "predicted")
TOLD = (*PARTS, "outcomes")


@dataclasses.dataclass(frozen=True)
class Job:
    """A graph by its name, how to make it, and the name of the device that it is planned for."""

    name: str
    make: Callable[[], Any]
    device: str


@dataclasses.dataclass(frozen=True)
class Total:
    """Of a graph's regions: how many, the predicted microseconds that they save and take, their bytes and
    launches; and how many bytes the graph's estimated peak rises."""

    regions: int = 0
    saved_us: float = 0.0
    us: float = 0.0
    bytes: int = 0
    launches: int = 0
    peak: int = 0


@dataclasses.dataclass(frozen=True)
class Replayed:
    """What the pass made of a graph, as text. `ends`: of each region, its space and strategy, or why it was
    declined. `graph`: after the pass, in which kernels have no numbers, as these differ between runs.
    `predicted`: of each region, microseconds, launches and bytes. `outcomes`: all of these in short, and the
    graph's estimated peak. Older commits have less."""

    name: str
    ends: str
    plan: str
    kernel: str
    graph: str
    predicted: str = ""
    outcomes: str = ""
    total: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def digest(self) -> str:
        """Of each part, so that it shows which of them differ."""
        texts = (getattr(self, part).encode() for part in PARTS)
        return " ".join(hashlib.sha256(text).hexdigest()[:8] for text in texts)


def jobs(every: int = 1) -> Iterator[Job]:
    """Every graph on every device. With `every` above 1, one in so many of the corpus, on one device each."""
    from lab import corpus

    for i, entry in enumerate(corpus.load(CORPUS)):
        if i % every == 0:
            for device in DEVICES if every == 1 else [DEVICES[i // every % len(DEVICES)]]:
                yield Job(f"{entry.key} {device}", lambda entry=entry: _of_entry(entry), device)
    for name, make in (*_casts(every), *_norms(every)):
        for device in DEVICES[: None if every == 1 else 1]:
            yield Job(f"{name} {device}", make, device)


def wholes(groups: Sequence[str] = ()) -> Iterator[Job]:
    """The whole graphs on one device; those of some groups, such as `cases`, if there are any."""
    from lab import corpus

    for name, stored in corpus.graphs(GRAPHS).items():
        if not groups or group_of(name) in groups:
            yield Job(name, functools.partial(corpus.restored, stored), DEVICES[0])


def group_of(name: str) -> str:
    """The first part of a whole graph's name, such as `cases`."""
    return name.partition("/")[0]


def _of_entry(entry: Any) -> Any:
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.passes.fake_tensor_prop import FakeTensorProp

    module = entry.module("cpu")
    with FakeTensorMode() as mode:
        shapes = [(given.hint, given.dtype) for given in entry.inputs]
        inputs = [_empty(*hint, dtype) for hint, dtype in shapes]
        FakeTensorProp(module, mode).propagate_dont_convert_inputs(*inputs)
    return module.graph


def _empty(shape: Sequence[int], stride: Sequence[int], dtype: str) -> Any:
    import torch

    return torch.empty_strided(shape, stride, dtype=getattr(torch, dtype))


def _casts(every: int) -> Iterator[tuple[str, Callable[[], Any]]]:
    import graphs
    from support.quantised import RECIPES

    for name, recipe in RECIPES.items():
        for rows, cols in CASTS[: 1 if every > 1 else None]:
            cols *= recipe.wider
            specs = recipe.like(rows, cols)
            yield (
                f"{name} {rows}x{cols}",
                lambda r=recipe, s=specs: graphs.traced(lambda *x: r.function(*x), *s),
            )


def _norms(every: int) -> Iterator[tuple[str, Callable[[], Any]]]:
    import graphs

    for rows, cols in NORMS:
        for dtype in (graphs.bf16, graphs.f32)[: 1 if every > 1 else None]:
            for make in (graphs.rms_norm_backward, graphs.layer_norm_backward):
                yield (
                    f"{make.__name__} {rows}x{cols} {dtype}",
                    lambda make=make, args=(rows, cols, dtype): make(*args),
                )
    for group in GROUPS:
        for bias in (False, True):
            make = functools.partial(graphs.group_norm_backward, *group, bias=bias)
            yield f"group_norm_backward {group}{' behind a bias' * bias}", make
        yield f"group_norm_forward {group}", functools.partial(graphs.group_norm_forward, *group)
    for batch in BATCHES:
        yield f"batch_norm_backward {batch}", functools.partial(graphs.batch_norm_backward, *batch)


def replay(job: Job) -> Replayed:
    """Run the pass on a job's graph. An exception of the pass is its only end."""
    import devices

    from mixorder import pipeline
    from mixorder.errors import Decline
    from mixorder.options import Options
    from mixorder.report import RegionRecord, collect

    graph = job.make()
    setting = dataclasses.replace(pipeline.setting_in_force(), device=getattr(devices, job.device))
    try:
        with collect() as outcomes:
            records = pipeline.run(graph, Options(interpret=True, strict=True), setting)
    except Exception as error:  # the next graph goes on
        told = f"{type(error).__name__}: {error}"
        return Replayed(job.name, told, "", "", "", outcomes=told)
    told = [
        f"{e.reason.value}: {e.detail}" if isinstance(e, Decline) else f"{e.space} {e.strategy}"
        for e in outcomes
    ]
    plans = [str(r.schedule) for r in records]
    kernels = [
        f"# {k.grid}, {k.config}, {k.registers} registers\n{k.text}" for r in records for k in r.kernels
    ]
    predicted = "\n".join(f"{_rounded(r.expected)}, {r.traffic}" for r in records)
    texts = (*map("\n".join, (told, plans, kernels)), _plain(str(graph)))
    peaks = [r.planning.peak for r in records if r.planning.peak]
    total = Total(
        len(records),
        sum(r.expected.saved_us for r in records),
        sum(r.expected.ours_us for r in records),
        sum(r.traffic.total for r in records),
        sum(r.expected.launches for r in records),
        peaks[-1][1] - peaks[0][0] if peaks else 0,
    )
    pairs = zip(outcomes, told, strict=True)
    short = "\n".join(_short(end) if isinstance(end, RegionRecord) else text for end, text in pairs)
    return Replayed(job.name, *texts, predicted, short, dataclasses.asdict(total))


def _short(record: Any) -> str:
    """A fused region in a line."""
    expected, traffic = record.expected, record.traffic
    before, after = (f"{n / 1e6:.1f}" for n in record.planning.peak)
    return (
        f"{record.space} {record.strategy}, {len(record.inner)} + {len(record.outer)} reductions: "
        f"{expected.ours_us:.1f} of {expected.apart_us:.1f} us, "
        f"{expected.launches} of {expected.launches_apart} launches, "
        f"{traffic.total / 1e6:.1f} MB, peak {before} -> {after} MB"
    )


def _rounded(expected: Any) -> dict[str, Any]:
    """Microseconds to a tenth: the last places of a sum may differ between processors."""
    return {k: round(v, 1) if isinstance(v, float) else v for k, v in dataclasses.asdict(expected).items()}


def _plain(graph: str) -> str:
    return re.sub(r"(kernel_idx|constant_args_idx)( ?[:=] ?)\d+", r"\1\2_", graph)


def write(path: Path, every: int) -> None:
    with path.open("w") as lines:
        for job in itertools.chain(jobs(every), wholes()):
            print(json.dumps(dataclasses.asdict(replay(job))), file=lines, flush=True)


def read(path: Path) -> dict[str, Replayed]:
    with path.open() as lines:
        return {replayed.name: replayed for replayed in (Replayed(**json.loads(line)) for line in lines)}


def at(base: str, every: int, folder: Path) -> dict[str, Replayed]:
    """What a commit makes of the graphs, by its own script, or by this one if it has none."""
    tree = folder / "tree"
    subprocess.run(["git", "-C", ROOT, "worktree", "add", "--detach", "--quiet", tree, base], check=True)
    try:
        script = tree / "tools" / "replay.py"
        return _run(script if script.exists() else Path(__file__), tree, every, folder / "base.jsonl")
    finally:
        subprocess.run(["git", "-C", ROOT, "worktree", "remove", "--force", tree], check=True)


def _run(script: Path, tree: Path, every: int, out: Path) -> dict[str, Replayed]:
    """In a process whose `mixorder` is that of a tree."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, (tree, tree / "tests", tree / "tools"))),
    }
    command = [sys.executable, script, "--write", out, "--every", str(every)]
    subprocess.run(command, check=True, env=environment, cwd=tree)
    return read(out)


def differences(old: dict[str, Replayed], new: dict[str, Replayed]) -> str:
    """How many graphs differ and in which part, and the first of each part as a diff; empty if none do."""
    differing = {
        part: [n for n in old.keys() & new.keys() if getattr(old[n], part) != getattr(new[n], part)]
        for part in TOLD
    }
    lines = [f"{len(old.keys() - new.keys())} graphs are gone"] if old.keys() - new.keys() else []
    lines += [
        f"{part} differs in {len(names)} of {len(new)} graphs" for part, names in differing.items() if names
    ]
    for part, names in differing.items():
        for name in sorted(names)[:1]:
            texts = (getattr(replays[name], part).splitlines() for replays in (old, new))
            lines += ["", f"{part} of {name}:", *difflib.unified_diff(*texts, lineterm="", n=2)]
    changes = Counter(
        f"{old[n].ends or 'nothing'} -> {new[n].ends or 'nothing'}".replace("\n", "; ")
        for n in differing["ends"]
    )
    return "\n".join([*lines, *(f"{count} times: {change}" for change, count in changes.most_common(20))])


# Whole graphs.


def captured(processes: int) -> int:
    """Trace all programs again, and write the graphs in which the pass finds anything, and those of models.
    Prints which programs have none."""
    from lab import corpus, families
    from lab.pool import ENVIRONMENT, Broken, Pool

    all_graphs: dict[str, Any] = {}
    pool = Pool(processes, "lab.harvest_process", "graphs", ENVIRONMENT)
    try:
        for task, result in pool.run(families.replayed(), TRACED_S):
            graphs, error = ({}, result.how) if isinstance(result, Broken) else result
            all_graphs |= graphs
            if error:
                print(f"{' '.join(task)}: {error}", file=sys.stderr)
    finally:
        pool.close()
    jobs = (
        Job(name, functools.partial(corpus.restored, graph), DEVICES[0]) for name, graph in all_graphs.items()
    )
    models = " ".join(families.MODELS.values()).split()
    kept = {job.name for job in jobs if job.name.split(" ")[0] in models or replay(job).ends}
    corpus.save_graphs(GRAPHS, {name: all_graphs[name] for name in sorted(kept)})
    return 0


# What rules are good for.


def ablated(rules: Sequence[str], chosen: Sequence[Job], processes: int) -> Iterator[str]:
    """The lines of a table of the rules: in how many graphs each answers otherwise than its substitute, how
    many are otherwise without it, and what all of these then save, take, move and hold. A fresh process for
    each graph and rule, as answers are remembered; it has what this one has imported."""
    import multiprocessing

    from lab.tables import head, line

    _chosen[:] = chosen  # functions that make graphs cannot be sent
    with multiprocessing.get_context("fork").Pool(processes, maxtasksperchild=1) as pool:
        asked = pool.map(_watched, range(len(chosen)), 1)
        graphs = {rule: [i for i, (_, answered) in enumerate(asked) if rule in answered] for rule in rules}
        columns = ("rule", "asked", "other graphs", "regions", "saved us", "us", "MB", "launches", "peak MB")
        yield f"{len(chosen)} graphs: {_told(_sum([old.total for old, _ in asked]))}\n\n{head(columns)}"
        rest = pool.imap(_without, [(rule, i) for rule, numbers in graphs.items() for i in numbers])
        for rule, numbers in graphs.items():
            tried = [(asked[i][0], next(rest)) for i in numbers]
            changed = [(old, new) for old, new in tried if old.digest != new.digest]
            change = _sum([new.total for _, new in changed], [old.total for old, _ in changed])
            yield line([rule, str(len(numbers)), str(len(changed)), *_numbers(change)])


_chosen: list[Job] = []


def _watched(number: int) -> tuple[Replayed, set[str]]:
    from lab import rules

    with rules.watched() as differing:
        return replay(_chosen[number]), differing


def _without(task: tuple[str, int]) -> Replayed:
    from lab import rules

    rule, number = task
    with rules.off(rule):
        return replay(_chosen[number])


def _sum(totals: Sequence[dict[str, Any]], less: Sequence[dict[str, Any]] = ()) -> Total:
    sums = {f.name: sum(t.get(f.name, 0) for t in totals) for f in dataclasses.fields(Total)}
    return Total(**{name: n - sum(t.get(name, 0) for t in less) for name, n in sums.items()})


def _numbers(total: Total) -> list[str]:
    mb = (f"{n / 1e6:.1f}" for n in (total.bytes, total.peak))
    moved, peak = mb
    return [str(total.regions), f"{total.saved_us:.1f}", f"{total.us:.1f}", moved, str(total.launches), peak]


def _told(total: Total) -> str:
    names = ("regions", "us saved", "us", "MB", "launches", "MB more at the peak")
    return ", ".join(f"{n} {name}" for n, name in zip(_numbers(total), names, strict=True))


def main(argv: Sequence[str]) -> int:
    from lab import arguments

    parser = arguments.parser(__doc__)
    parser.add_argument("--base", default="HEAD", help="the commit to compare with")
    parser.add_argument("--every", type=int, default=1, help="take every so many-th entry of the corpus")
    parser.add_argument("--write", type=Path)
    parser.add_argument("--without", nargs="*", metavar="RULE", help="of lab/rules.py; all if none is named")
    parser.add_argument("--graphs", nargs="*", help="of --without: only those whose name has one of these")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="default: %(default)s")
    parser.add_argument("--capture", action="store_true", help="needs transformers, and no GPU")
    args = parser.parse_args(argv)
    if args.capture:
        return captured(args.processes)
    if args.without is not None:
        from lab.rules import RULES

        chosen = [*wholes(), *jobs(args.every)]
        named = [job for job in chosen if not args.graphs or any(part in job.name for part in args.graphs)]
        for told in ablated(args.without or [*RULES], named, args.processes):
            print(told, flush=True)
        return 0
    if args.write:
        write(args.write, args.every)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        old = at(args.base, args.every, Path(folder))
        new = _run(Path(__file__), ROOT, args.every, Path(folder) / "new.jsonl")
    text = differences(old, new)
    print(text or f"nothing differs in {len(new)} graphs")
    return int(bool(text))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
