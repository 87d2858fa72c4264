"""What README.md, docs/supported.md and docs/reasons.md state and the code can confirm."""

import ast
import dataclasses
import itertools
import re
from pathlib import Path

import pytest
from graphs import bf16, f32, layer_norm_backward, merged, only, phases_facts, rms_norm_backward

from mixorder.errors import DeclineReason
from mixorder.inductor.versions import TESTED, release
from mixorder.options import Options, config_key
from mixorder.schedule.cooperative import MAX_PARTS
from mixorder.schedule.cooperative import choose as choose_shared
from mixorder.schedule.device import MEASURED as H200
from mixorder.schedule.persistent import MAX_COLS
from mixorder.schedule.predicted import LEAST_SAVED

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()
SUPPORTED = (ROOT / "docs" / "supported.md").read_text()
REASONS = (ROOT / "docs" / "reasons.md").read_text()


def table(first_header: str, page: str = README) -> list[list[str]]:
    """The rows of the table whose first column has this header; code marks taken off."""
    lines = page.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith(f"| {first_header} |"))
    rows = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip().strip("`") for cell in line.strip("|").split("|")])
    return rows


def test_the_options_table() -> None:
    documented = [(name, ast.literal_eval(d), env) for name, d, env, _ in table("option")]
    declared = [(config_key(f), f.default, f.metadata.get("env", "")) for f in dataclasses.fields(Options)]
    assert documented == declared


def test_the_reasons_given_by_the_code_are_listed() -> None:
    sources = "".join(path.read_text() for path in (ROOT / "mixorder").rglob("*.py"))
    given = {DeclineReason[name].value for name in re.findall(r"DeclineReason\.([A-Z_]+)", sources)}
    assert given == {row[0] for row in table("reason", REASONS)}


def test_the_widest_row() -> None:
    text = " ".join(SUPPORTED.split())
    (shared,) = re.findall(
        rf"up to {MAX_COLS} columns; on NVIDIA GPUs,.* those of a norm up to (\d+)\.", text
    )
    for make, dtype in itertools.product((rms_norm_backward, layer_norm_backward), (bf16, f32)):
        work = phases_facts(merged(only(make(512, int(shared), dtype))))
        assert choose_shared(work, H200).group <= MAX_PARTS
    assert f"one program, which holds at most {MAX_COLS} columns" in REASONS


def test_the_options_that_the_reasons_name() -> None:
    keys = {config_key(field) for field in dataclasses.fields(Options)}
    named = set(re.findall(r"`(mixorder_\w+)`", REASONS))
    assert named and named <= keys


def test_the_tested_pairs() -> None:
    pairs = {release(torch): triton for torch, triton, *_ in table("torch", SUPPORTED) if triton}
    assert pairs == TESTED
    pinned = re.findall(
        r"^(?:TORCH|TRITON)_VERSION=(.+)$", (ROOT / "tools/setup.sh").read_text(), re.MULTILINE
    )
    assert TESTED[release(pinned[0])] == pinned[1]


def test_a_device_has_the_day_of_its_last_run() -> None:
    """Of what is only compiled, that of the offline compile."""
    runs = {where: day for *_, where, _, day in table("torch", SUPPORTED) if where}
    devices = {name: (state, day) for name, state, _, day in table("device", SUPPORTED) if day}
    for card in ("NVIDIA H200", "NVIDIA H100"):
        assert devices[f"{card} (sm_90)"] == ("measured", runs[card])
    offline = {day for where, day in runs.items() if "offline compile" in where}
    assert {day for state, day in devices.values() if state == "compiled"} == offline


def test_the_models_that_gain_are_those_of_the_lab() -> None:
    """A row has the figures of one row of the lab or of the page on FP8. The rows are sorted by GPU time."""
    pages = ((DOCS / name).read_text() for name in ("lab/duels.md", "lab/family.md", "quantise.md"))
    cells = [{cell.strip() for cell in line.split("|")} for page in pages for line in page.splitlines()]
    saved, trained = list[float](), list[float]()
    for name, _, step, second, gpu, share, peak in table("model"):
        figures = {one for cell in (step, second, gpu, peak) for one in CHANGE.findall(cell)}
        assert sum(figures <= row for row in cells) == 1 and len(figures) == 3 + bool(second), name
        saved.append(1 - _ratio(gpu))
        assert share == f"-{saved[-1]:.1%}", name
        trained += [100 * saved[-1]] if second else []
    assert saved == sorted(saved, reverse=True)
    assert f"takes {min(trained):.0f} to {max(trained):.0f}% less GPU time, and an autoenc" in README
    assert f"{100 * saved[0]:.0f}% less.**" in README


def test_what_is_said_of_69_models_is_what_their_table_has() -> None:
    head = "model | recipe | step, ms | GPU, ms | outside libraries, ms | differ, ms | peak, MiB"
    rows = table(head, (DOCS / "lab" / "duels.md").read_text())
    steps, *rose = ([_ratio(row[i]) for row in rows] for i in (2, 3, 6))
    longer = [step for step in steps if step > 1]
    assert f"with {len(rows)} models and recipes" in README and max(map(max, rose)) <= 1.005
    assert f"{len(longer)} steps got longer, by up to {max(longer) - 1:.1%}" in README
    assert f"with {len(rows)} models and recipes ({len({row[0] for row in rows})} models, " in README


def test_the_longest_step_is_that_of_all_tables_of_whole_models() -> None:
    lines = (DOCS / "lab" / "duels.md").read_text().splitlines()
    rows = (line.split("|") for line in lines if re.match(r"\| (timm|transformers|loops|diffusers)/", line))
    steps = [_ratio(row[3].strip()) for row in rows if len(row) in (8, 9)]
    assert len(steps) > 90 and f"a step {max(steps) - 1:.1%} longer" in README


def _ratio(change: str) -> float:
    before, after = map(float, change.split(" -> "))
    return after / before


def test_it_is_short() -> None:
    assert len(README.splitlines()) <= 150


DOCS = ROOT / "docs"
CHANGELOG = (ROOT / "CHANGELOG.md").read_text()
CHANGE = re.compile(r"\d[\d.,]* -> \d[\d.,]*\d")


@pytest.mark.parametrize("page", ["README.md", *(f"docs/{p.name}" for p in sorted(DOCS.glob("*.md")))])
def test_a_figure_stands_in_one_place(page: str) -> None:
    """A change `a -> b` outside of tables is in a table of the lab, or of the same page, with its day."""
    text = re.sub(r"```.*?```", "", (ROOT / page).read_text(), flags=re.DOTALL)
    tables = [line for line in text.splitlines() if line.startswith("|")]
    recorded = "".join([*tables, *(path.read_text() for path in (DOCS / "lab").glob("*.md"))])
    table_of = re.findall(r"(\d+) -> (\d+) us for (\(.*?\))", text)  # rounded
    for before, after, shape in table_of:
        (row,) = re.findall(rf"^\| {re.escape(shape)} \| ([\d.]+) \| ([\d.]+) \|", recorded, re.MULTILINE)
        assert [f"{float(us):.0f}" for us in row] == [before, after]
    rounded = {f"{before} -> {after}" for before, after, _ in table_of}
    told = CHANGE.findall("\n".join(line for line in text.splitlines() if line not in tables))
    assert {one for one in told if one not in recorded} <= rounded | OWN.get(page, set())


# Measured for that sentence alone; the day is in it.
OWN = {"docs/quantise.md": {"61 -> 92", "62 -> 86", "61 -> 83"}}


def test_what_casts_gain_is_the_range_of_their_table() -> None:
    (column,) = (
        [row[1] for row in table(header, (DOCS / "quantise.md").read_text())]
        for header in ("H200: percent of the limit, Inductor -> mixorder",)
    )
    ratios = [_ratio(cell) for cell in column]
    assert len(ratios) > 10
    assert f"At 16384x4096 this is {min(ratios):.1f} to {max(ratios):.1f} times as fast" in README


def test_what_a_step_with_fp8_gains_is_what_its_table_has() -> None:
    rows = {row[0]: row for row in table("recipe | step, ms", (DOCS / "quantise.md").read_text())}
    less = {name: 1 - _ratio(row[2]) for name, row in rows.items()}
    assert max(less, key=lambda name: less[name]) == "rowwise"
    weights, by_hand = less["rowwise_with_gw_hp"], less["blocks_of_128"]
    said = f"takes {less['tensorwise']:.1%} less GPU time with `tensorwise`, {weights:.1%} with "
    assert f"{said}`rowwise_with_gw_hp`, and {by_hand:.1%} with blocks of 128 in plain PyTorch" in README


def test_the_time_of_the_pass_is_the_range_of_its_table() -> None:
    page = (DOCS / "lab" / "compile_time.md").read_text()
    each = [float(row[5]) for row in table("model", page)]
    said = f"{min(each):.0f} to {max(each):.0f} ms"
    assert f"mixorder adds {said} for each region" in page and f"The pass takes {said} a region" in CHANGELOG


def test_what_norms_gain_is_the_range_of_their_tables() -> None:
    page = (DOCS / "lab" / "family.md").read_text()
    cells = [line.split("|") for line in page.splitlines() if line.startswith("|") and line.count("|") == 10]
    speeds = [float(row[6]) for row in cells if re.search(r"\d", row[6])]
    assert len(speeds) > 50
    assert f"mixorder is {min(speeds):.1f} to {max(speeds):.1f} times as fast as stock Inductor" in page


def test_what_has_to_be_saved_is_what_the_gate_asks_for() -> None:
    least = f"{LEAST_SAVED:.0%}"
    assert f"have to save {least} by prediction" in REASONS and f"now have to save {least}." in CHANGELOG


def test_what_was_run_is_what_is_installed() -> None:
    bounds = dict(re.findall(r"^([\w-]+)>=([\d.]+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
    adopt = (DOCS / "adopt.md").read_text()
    assert re.findall(r"Trainer .* run with transformers (\d+\.\d+)", adopt) == [bounds["transformers"]]
    assert f"transformers {bounds['transformers']}." in README


def test_the_place_for_measured_figures() -> None:
    assert README.count("<!-- bench -->") == README.count("<!-- /bench -->") == 1
    (day,) = re.findall(r"^## Norms, (.*)$", (DOCS / "lab" / "benchmark.md").read_text(), re.MULTILINE)
    assert f"these figures (H200, {day})" in README


def test_every_reason_has_a_meaning_and_the_remedy_that_explain_says() -> None:
    rows = table("reason", REASONS)
    assert all(len(row) == 3 and min(map(len, row[1:])) > 15 for row in rows)
    assert len(rows) == len(DeclineReason)
    documented = {name: remedy for name, _, remedy in rows}
    assert documented == {reason.value: reason.remedy.strip("`") for reason in DeclineReason}
