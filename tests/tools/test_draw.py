"""Draws without a GPU: from end to end in the interpreter, and what is drawn."""

import multiprocessing
import re
import shutil
import subprocess
import sys
import time
from itertools import islice
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import draw
import pytest
import torch
from fresh_process import HANG_S
from lab import duel, duel_report
from lab.corpus import Entry, Input, Place, save
from lab.corpus import load as entries_of
from lab.duels import Duel, Way, load
from lab.exact import NoReference, exact
from lab.processes import Turn
from lab.tables import head
from torch.fx.experimental.proxy_tensor import make_fx

from mixorder.planning import setting_in_force

aten, prims = torch.ops.aten, torch.ops.prims
TOOLS = Path(__file__).resolve().parents[2] / "tools"


def norm(x: torch.Tensor, dy: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Of bf16, with an inner and an outer reduction in fp32."""
    wide = prims.convert_element_type.default(x, torch.float32)
    g = prims.convert_element_type.default(dy, torch.float32)
    dx = g - wide * aten.mean.dim(g * wide, [1], True)
    return prims.convert_element_type.default(dx, torch.bfloat16), aten.sum.dim_IntList(g * wide, [0])


# The parts of a duel.


def test_a_rule_is_off_for_mixorder_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    strategies = list[set[str]]()

    def compiled(way: Way, *_: Any) -> tuple[None, str]:
        way.status = "failed"
        strategies.append({s.name for s in setting_in_force().strategies})
        return None, ""

    monkeypatch.setattr(duel, "compiled", compiled)
    monkeypatch.setattr(duel, "ahead_of_time", lambda *_: None)
    corpus, turn = (str(tmp_path / name) for name in ("corpus.jsonl.xz", "turn"))
    save(Path(corpus), [entry("a", "bfloat16")])
    duel.work(duel.Task("a", corpus, "cpu", turn, without="strategies.tile"))
    stock, ours = strategies
    assert stock - ours == {"blocks in a tile"}


def test_float64_rounds_nowhere() -> None:
    x, dy = (torch.randn(8, 16).bfloat16() for _ in range(2))
    dx, dw = exact(make_fx(norm)(x, dy), [x, dy])
    assert dx.dtype == dw.dtype == torch.float64
    wide, g = x.double(), dy.double()
    torch.testing.assert_close(dx, g - wide * (g * wide).mean(1, keepdim=True), rtol=0, atol=1e-14)


@pytest.mark.parametrize(
    "graph",
    [
        lambda x: aten.view.dtype(x, torch.int32),
        lambda x: aten.bernoulli.p(x, 0.5),
    ],
)
def test_bits_and_random_numbers_have_no_reference(graph: Any) -> None:
    x = torch.rand(4)
    with pytest.raises(NoReference):
        exact(make_fx(graph)(x), [x])


def _hold(path: str, pipe: Any) -> None:
    with Turn(path, 100):
        pipe.send("held")
        time.sleep(60)


def test_a_turn_is_one_process_s_until_it_dies(tmp_path: Path) -> None:
    path = str(tmp_path / "turn")
    context = multiprocessing.get_context("fork")
    mine, theirs = context.Pipe()
    process = context.Process(target=_hold, args=(path, theirs), daemon=True)
    process.start()
    assert mine.recv() == "held"
    started = time.monotonic()
    process.kill()
    turn = Turn(path, 100)
    with turn, turn:
        assert time.monotonic() - started < 30
    turn.take()
    turn.give_back()
    assert turn.waited_s < 30 and turn.held_s > 0


# Records and their report.


def entry(key: str, dtype: str, target: str = "aten.mul.Tensor") -> Entry:
    """dx and dw of a norm without its statistics; the third node is `target`."""
    wide, narrow = {"torch": "float32"}, {"torch": dtype}
    nodes = [
        ["prims.convert_element_type.default", [{"node": 0}, wide], {"kwargs": {}}],
        ["prims.convert_element_type.default", [{"node": 1}, wide], {"kwargs": {}}],
        [target, [{"node": 2}, {"node": 3}], {"kwargs": {}}],
        ["aten.mean.dim", [{"node": 4}, [1], True], {"kwargs": {}}],
        ["aten.sum.dim_IntList", [{"node": 4}, [0]], {"kwargs": {}}],
        ["aten.mul.Tensor", [{"node": 2}, {"node": 5}], {"kwargs": {}}],
        ["aten.sub.Tensor", [{"node": 3}, {"node": 7}], {"kwargs": {}}],
        ["prims.convert_element_type.default", [{"node": 8}, narrow], {"kwargs": {}}],
    ]
    inputs = [Input(dtype, [33, 20], [20, 1], [[33, 20], [20, 1]])] * 2
    places = [Place("gpt", "autocast" if dtype == "bfloat16" else "fp32", "backward", 2)]
    return Entry(key, inputs, nodes, [9, 6], [5], [6], "fused", "persistent", places)


def drawn(*args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(TOOLS / "draw.py"), "--device", "cpu", "--workers", "1", *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=HANG_S)


def test_duels_from_end_to_end(tmp_path: Path) -> None:
    """In the interpreter, by the host's clock. What cannot be compiled is a line, and the others go on."""
    broken = entry("c", "bfloat16", "aten.mm.default")
    path = tmp_path / "corpus.jsonl.xz"
    save(path, [entry("a", "bfloat16"), broken])
    done = drawn("--subgraphs", str(path), "--out", str(tmp_path), "--seconds", "250")
    assert done.returncode == 1, done.stderr + done.stdout
    records = [records[-1] for records in load([tmp_path / "duels.jsonl"])]
    duel, failed = sorted(records, key=lambda duel: duel.key)
    assert duel.key == "a" and duel.timed and duel.kind == "norm" and duel.reference == "float64"
    assert [region["inner_ops"] for region in duel.ours.regions] == [["mean"]] and not duel.stock.regions
    assert len(duel.ours.errors) == len(duel.stock.errors) == 2 and not duel.less_exact
    assert {"first_stock", "first_ours", "times", "errors"} <= duel.locked.keys()
    assert 1e-4 < duel.ours.errors[0] < 1e-2 and duel.num_bytes == 3 * 33 * 20 * 2 + 20 * 4
    assert (failed.key, failed.status) == ("c", "failed") and "mm" in failed.message
    text = (tmp_path / "duels.md").read_text()
    assert text in done.stdout and "33x20 persistent" in text
    assert "- c (gpt/autocast/backward): failed" in text


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
@pytest.mark.skipif(torch.version.cuda is not None, reason="needs a CPU build of torch")
def test_a_program_and_a_family_are_traced(tmp_path: Path) -> None:
    """Under autocast with CUDA's lists. Subgraphs of a file are timed above."""
    program = "spellings/rms/7@8"
    names = f"{program}:bf16", "loops/tiny:autocast"
    done = drawn("--names", *names, "--out", str(tmp_path), "--tracing", "300", "--no-times")
    assert done.returncode == 0, done.stderr + done.stdout
    found = [(e, place) for e in entries_of(tmp_path / "subgraphs.jsonl.xz") for place in e.places]
    kinds = {(place.family, place.recipe, place.kind) for _, place in found}
    assert kinds >= {(program, "bf16", kind) for kind in ("forward", "backward")}
    assert {entry.outcome for entry, place in found if place.family == program} == {"whole"}
    mixed = [entry for entry, place in found if place.recipe == "autocast"]
    assert any({"float32", "bfloat16"} <= {one.dtype for one in entry.inputs} for entry in mixed)


def test_a_row_and_the_names_are_added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page, used = tmp_path / "page.md", tmp_path / "drawn.txt"
    page.write_text(f"before\n\n{head(duel_report.DRAW)}\n| older |\n\nbehind\n")
    monkeypatch.setattr(draw, "DRAWN", used)
    lost = timed("a", 20.0, 22.0, "transformers/new")
    draw.added(page, [lost, timed("b", 40.0, 40.0, "transformers/new"), Duel("c", "hung")])
    *_, older, row, _, behind = page.read_text().splitlines()
    told = "| today | 2, 0 (1 without a result) | 1: transformers/new/bf16/forward 20 -> 22 us | - |"
    assert (older, behind) == ("| older |", "behind") and row.startswith(told)
    assert used.read_text() == "transformers/new\n"


def timed(key: str, stock: float, ours: float, *families: str) -> Duel:
    where = [[family, "bf16", "forward"] for family in families]
    return Duel(key, where=where, stock=Way(us=stock), ours=Way(us=ours), on="today")


def test_what_is_said_of_all_draws_is_the_sum_of_their_rows() -> None:
    pages = {name: (TOOLS.parent / name).read_text() for name in ("README.md", "docs/troubleshooting.md")}
    page = (TOOLS.parent / "docs" / "lab" / "duels.md").read_text()
    _, _, behind = page.partition(head(duel_report.DRAW) + "\n")
    rows = [one.strip("| ").split(" | ") for one in behind.partition("\n\n")[0].splitlines()]
    counts = [[int(re.findall(r"\d+", row[i])[0]) for i in (1, 2, 5, 6)] for row in rows]
    drawn, slower, peaks, errors = (sum(column) for column in zip(*counts, strict=True))
    assert f"draws have {drawn:,} subgraphs, of which {slower} are slower by 3% and 1 us" in page
    assert f": {counts[0][1]} in the first draw, and {slower - counts[0][1]} in the others." in page
    assert f"are {errors} of the {drawn:,}." in page and f"4 MiB in {peaks} of the {drawn:,}." in page
    shares = sorted(count[1] / int(row[1].split()[1]) for count, row in zip(counts, rows, strict=True))
    assert f"{100 * shares[0]:.0f} to {shares[-2]:.0%} are\nslower, and {shares[-1]:.0%} in the first" in page
    linked = f"{drawn:,} drawn subgraphs](docs/lab/duels.md#fresh-draws), {errors} were less exact"
    assert linked in pages["README.md"]
    assert f"{drawn:,} drawn subgraphs, {peaks} had a higher peak" in pages["docs/troubleshooting.md"]


def test_spellings_are_planned_as_their_bases() -> None:
    plans = {"spellings/a/0": (["k"], 10.0), "spellings/a/1": (["k"], 10.0), "spellings/a/2": (["l"], 10.4)}
    told = duel_report.planned(plans | {"spellings/a/3": (["l"], 11.0), "spellings/b/4": (["l"], 1.0)})
    first, *differing = told.splitlines()
    assert first == "66.7% of 3 spellings are planned as their base, 1 of them by the same kernels"
    assert differing == ["- spellings/a/3: 10.0 -> 11.0 us"]


def test_what_is_drawn_is_in_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    new = "_".join(("of", "tomorrow"))  # not a name in quotes
    models = {"pvt_v2": ["pvt_v2", new]}
    timm = SimpleNamespace(list_modules=lambda: [*models], list_models=lambda module: models[module])
    monkeypatch.setitem(sys.modules, "timm", timm)
    monkeypatch.setattr(
        "lab.families.transformers_names", lambda: ["transformers/llama", f"transformers/{new}"]
    )
    known = draw.named()
    assert {"llama", "gpt2", "beit", "pvt_v2"} <= known  # by name, in quotes, in the corpus, on a page
    once, again = ([*islice(draw.spelled(Random(seed), 5), 40)] for seed in (3, 3))
    assert once == again and once[0] == ("spellings/rms/0", "bf16") and once[29:30] != once[30:31]
    drawn = {name.partition("@")[0] for name, _ in islice(draw.fresh(Random(3)), 40)}
    programs = {name for name in drawn if name.startswith("programs/")}
    assert drawn - programs == {f"transformers/{new}", f"shallow/{new}"} and len(programs) > 30
