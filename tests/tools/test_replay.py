"""The replay's own parts: a graph's texts, and what is told of two sets of them."""

from __future__ import annotations

import dataclasses
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
from replay import Job, Replayed, differences

EVERY, DIGESTS = 20, Path(__file__).with_name("replay.json")
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


def test_plans_kernels_and_graphs_are_those_of_before() -> None:
    """Of every 20th graph of the corpus, all casts and norms; with the versions of `tools/setup.sh`."""
    setup = (replay.ROOT / "tools" / "setup.sh").read_text()
    expected = dict(re.findall(r"^(TORCH|TRITON)_VERSION=(\S+)", setup, re.MULTILINE))
    here = {"TORCH": torch.__version__.split("+")[0], "TRITON": triton.__version__}
    if here != expected:
        pytest.skip(f"the digests are of {expected}")
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
