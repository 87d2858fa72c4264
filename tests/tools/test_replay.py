"""The replay's own parts: a graph's texts, and what is told of two sets of them."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import json
import os
import re
from pathlib import Path

import graphs
import pytest
import replay
import torch
import triton
from lab import corpus, rules, subgraphs
from replay import Job, Replayed, differences
from torch._inductor.fx_utils import get_node_storage

from mixorder.strategies import STRATEGIES

EVERY, DIGESTS = 60, Path(__file__).with_name("replay.json")
OUTCOMES = Path(__file__).with_name("outcomes")
NORM = Job("norm", functools.partial(graphs.rms_norm_backward, 4096, 1024), "H200")


def test_a_graph_gives_the_same_texts_again_and_others_on_another_device() -> None:
    first, again = replay.replay(NORM), replay.replay(NORM)
    assert first == again and first.digest == again.digest
    assert first.ends == "4096x1024 persistent"
    assert "@triton.jit" in first.kernel and "split" in first.plan
    assert "triton_kernel_wrapper_functional" in first.graph
    assert replay.replay(dataclasses.replace(NORM, device="RTX")).digest != first.digest


def test_an_exception_of_the_pass_is_an_end() -> None:
    found = replay.replay(Job("none", lambda: None, "H200"))
    assert found.ends.startswith("AttributeError") and not found.kernel


def test_nothing_is_told_of_equal_sets_and_the_first_text_of_others() -> None:
    old = {name: Replayed(name, "8x8 persistent", "rows = 1", "a\nb", "g") for name in ("one", "two")}
    assert differences(old, old) == ""
    new = {**old, "two": dataclasses.replace(old["two"], kernel="a\nc")}
    assert differences(old, new).splitlines() == [
        "kernel differs in 1 of 2 graphs",
        "",
        "kernel of two:",
        "--- ",
        "+++ ",
        "@@ -1,2 +1,2 @@",
        " a",
        "-b",
        "+c",
    ]
    declined = {**old, "one": dataclasses.replace(old["one"], ends="slower: 2 us")}
    assert differences(old, declined).splitlines()[-1] == "1 times: 8x8 persistent -> slower: 2 us"
    assert "1 graphs are gone" in differences(old, {"one": old["one"]})


@pytest.fixture
def known_versions() -> None:
    """Those of `tools/setup.sh`."""
    setup = (replay.ROOT / "tools" / "setup.sh").read_text()
    expected = dict(re.findall(r"^(TORCH|TRITON)_VERSION=(\S+)", setup, re.MULTILINE))
    here = {"TORCH": torch.__version__.split("+")[0], "TRITON": triton.__version__}
    if here != expected:
        pytest.skip(f"the digests are of {expected}")


@pytest.mark.usefixtures("known_versions")
def test_plans_kernels_and_graphs_are_those_of_before() -> None:
    """Of every 60th graph of the corpus, all casts and norms."""
    new = {one.name: one.digest for one in map(replay.replay, replay.jobs(EVERY))}
    if os.environ.get("EXPECTTEST_ACCEPT") == "1":
        DIGESTS.write_text(json.dumps(new, indent=0, sort_keys=True) + "\n")
    old = json.loads(DIGESTS.read_text())
    differing = {
        name: ", ".join(part for part, a, b in zip(replay.PARTS, *one, strict=True) if a != b)
        for name in old.keys() & new.keys()
        if (one := (old[name].split(), new[name].split()))[0] != one[1]
    }
    assert not differing and old.keys() == new.keys(), (
        f"{len(differing)} of {len(new)} graphs differ: see `tools/replay.py --base COMMIT --every {EVERY}`. "
        "EXPECTTEST_ACCEPT=1 takes what they are now.\n"
        + "\n".join(f"{name}: {parts}" for name, parts in sorted(differing.items()))
        + "".join(f"\n{name}: only before or now" for name in sorted(old.keys() ^ new.keys()))
    )


def outcome(found: Replayed) -> str:
    """What became of a whole graph: a line for each region and decline, and digests of the texts."""
    _, plan, kernel, graph, _ = found.digest.split()
    texts = [f"plans {plan}, kernels {kernel}, graph {graph}"] if found.plan else []
    return "\n  ".join([found.name, *(found.outcomes.splitlines() or ["nothing"]), *texts])


def graphs_of(text: str) -> dict[str, str]:
    """The outcomes of a file by the graphs' names."""
    return {one.partition("\n")[0]: one for one in re.split(r"\n(?=\S)", text.rstrip("\n")) if one}


@pytest.mark.usefixtures("known_versions")
@pytest.mark.parametrize("group", sorted({replay.group_of(name) for name in corpus.graphs(replay.GRAPHS)}))
def test_whole_graphs_end_as_before(group: str) -> None:
    new = {one.name: outcome(one) for one in map(replay.replay, replay.wholes([group]))}
    path = OUTCOMES / f"{group}.txt"
    if os.environ.get("EXPECTTEST_ACCEPT") == "1":
        path.write_text("\n".join(new.values()) + "\n")
    old = graphs_of(path.read_text())
    changes = [
        [*difflib.unified_diff(*(some.get(name, "").splitlines() for some in (old, new)), lineterm="", n=1)]
        for name in {**old, **new}
    ]
    told = "\n".join(line for change in changes for line in change[2:])
    assert not told, f"{told}\nEXPECTTEST_ACCEPT=1 takes what they are now"


def test_a_whole_graph_keeps_symbols_memory_and_guards() -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        rows = x.view(-1, 4, x.shape[1])  # whose number is `n // 4`, which a guard says has no remainder
        y, _ = torch.ops.aten.native_dropout(rows * w, 0.5, True)
        first, second = torch.ops.aten.split.Tensor(rows, 32, 2)
        return y, first + second, rows.sum(1), torch.mm(x, x.t())

    graph = graphs.traced_rows(function, ((128, 64), graphs.bf16), ((64,), graphs.bf16), symbolic=[0])
    stored = json.loads(json.dumps(subgraphs.whole(graph)))
    both = graph, (again := corpus.restored(stored))
    assert subgraphs.whole(again)["nodes"] == stored["nodes"]
    values = [[*(n.meta["val"] for n in g.nodes if n.op != "output")] for g in both]
    for old, new in zip(*values, strict=True):
        if isinstance(old, torch.Tensor):
            assert (old.dtype, old.ndim) == (new.dtype, new.ndim)
            for a, b in ((old.shape, new.shape), (old.stride(), new.stride())):
                assert [str(n).isdigit() for n in a] == [str(n).isdigit() for n in b]
                assert [*map(_hint, a)] == [*map(_hint, b)]
    names = [n.name for n in graph.nodes]
    storages = [[get_node_storage(n) for n in g.nodes] for g in both]
    shared = [[(names[i], names[s.index(one)]) for i, one in enumerate(s) if one] for s in storages]
    assert shared[0] == shared[1] and any(a != b for a, b in shared[0])
    divisible = [g.find_nodes(op="placeholder")[0].meta["val"].fake_mode.shape_env.divisible for g in both]
    assert len(divisible[0]) == len(divisible[1]) > 0


def _hint(size: int | torch.SymInt) -> int:
    return size if isinstance(size, int) else size.node.hint


LAYER = Job("layer norm", functools.partial(graphs.layer_norm_backward, 4096, 1024), "H200")


def test_every_rule_is_found_and_can_be_switched_off() -> None:
    assert {*rules.STRATEGIES.values()} == {strategy.name for strategy in STRATEGIES}
    for rule in rules.RULES.keys() - rules.STRATEGIES.keys():
        assert rules.place_of(rule).now is not None, rule
    with rules.watched() as differing:
        whole = replay.replay(LAYER)
    assert {"planning.improved", "strategies.persistent"} <= differing
    assert (
        not {"region.find.group_seed", "region.find.near_misses", "region.grow._PairGrowth.adopt"} & differing
    )
    with rules.off("planning.improved"):
        assert replay.replay(LAYER).plan != whole.plan
    with rules.off("strategies.persistent"):
        assert "cooperative" in replay.replay(LAYER).ends
    assert replay.replay(LAYER) == whole


def test_the_table_of_rules_says_what_changes_without_each() -> None:
    names = ("planning.improved", "schedule.persistent.SHARED_BYTES", "region.find.group_seed")
    table = "\n".join(replay.ablated(names, [NORM, LAYER], 1)).splitlines()
    assert table[0].startswith("2 graphs: 2 regions, ")
    rows = [[cell.strip() for cell in row.split("|")[1:-1]] for row in table[4:]]
    asked, changed = [row[:4] for row in rows], float(rows[0][4])
    assert asked == [[names[0], "1", "1", "0"], [names[1], "2", "0", "0"], [names[2], "0", "0", "0"]]
    assert changed < 0 and float(rows[0][5]) == -changed and float(rows[1][4]) == 0
