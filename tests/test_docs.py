"""The pages in docs/ and the README: their Python runs, and the files and commands that they name exist."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from mixorder.__main__ import COMMANDS

ROOT = Path(__file__).resolve().parent.parent
PAGES = {path.name: path for path in (ROOT / "README.md", ROOT / "CHANGELOG.md", *ROOT.glob("docs/**/*.md"))}
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)

sys.path.insert(0, str(ROOT / "tools"))


def blocks(page: str, language: str) -> list[str]:
    return [text for kind, text in BLOCK.findall(PAGES[page].read_text()) if kind == language]


PRINTED = {"explain.md": ("Norm modules in a region: 7 of 7", "norm2", "8192x1024", "@triton.jit")}


ELSEWHERE = {"adopt.md"}  # test_adopt.py runs its lines, each in its framework


@pytest.mark.parametrize("page", [page for page in PAGES if page not in ELSEWHERE and blocks(page, "python")])
def test_python_runs(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All blocks of a page, one after the other; `torch` and a `model` are there from the start."""
    import torch._inductor.config as config

    monkeypatch.chdir(tmp_path)
    found: dict[str, Any] = {"torch": torch, "nn": nn, "model": nn.LayerNorm(8)}
    torch._dynamo.reset()
    with config.patch({"mixorder": False}):
        for i, text in enumerate(blocks(page, "python")):
            exec(compile(text, f"{page}, block {i}", "exec"), found)
    printed = capsys.readouterr().out
    assert all(text in printed for text in PRINTED.get(page, ()))


@pytest.mark.parametrize("page", PAGES)
def test_links_and_files_exist(page: str) -> None:
    text = BLOCK.sub("", PAGES[page].read_text())
    for link in re.findall(r"\]\((?!http)([^)#]+)\)", text):
        assert (PAGES[page].parent / link).exists(), link
    for name in re.findall(r"`((?:docs|tools|tests|examples|mixorder)/[\w/]+\.(?:py|sh|json|md)\b)", text):
        assert (ROOT / name).exists(), name


@pytest.mark.parametrize("page", PAGES)
def test_commands_exist(page: str) -> None:
    text = PAGES[page].read_text()
    for command in re.findall(r"python -m mixorder (\w[\w-]*)", text):
        assert command in COMMANDS, command
    for script in re.findall(r"(?:python|torchrun [^\n]*?) ((?:tools|examples)/\w+\.py)", text):
        assert (ROOT / script).exists(), script


def test_every_page_can_be_reached_from_the_readme() -> None:
    reached, todo = set(), {"README.md"}
    while todo:
        page = todo.pop()
        reached.add(page)
        links = re.findall(r"\]\((?:[\w./]*/)?(\w+\.md)\)", PAGES[page].read_text())
        todo |= {link for link in links if link in PAGES} - reached
    assert reached == set(PAGES)


@pytest.mark.parametrize("page", [page for page, path in PAGES.items() if ROOT / "docs" in path.parents])
def test_a_page_begins_with_whom_it_is_for(page: str) -> None:
    title, blank, first, *_ = PAGES[page].read_text().splitlines()
    assert title.startswith("# ") and not blank and first.startswith("For "), first


def test_what_names_a_part_of_the_page_on_tuning_names_a_heading() -> None:
    headings = set(re.findall(r"^#+ (.*)$", PAGES["tuning.md"].read_text(), re.MULTILINE))
    sources = [path for folder in ("mixorder", "tools", "tests") for path in (ROOT / folder).rglob("*.py")]
    named = {
        (path.name, name)
        for path in (*sources, *PAGES.values())
        for name in re.findall(r'tuning\.md`?,?[\s(]+"([^"\n]+)"', path.read_text())
    }
    assert len(named) > 2 and {name for _, name in named} <= headings, named


def test_how_it_works_is_what_the_pass_does() -> None:
    """Its text is from the version of torch that the tests' expected texts are from."""
    expected = re.search(r"^TORCH_VERSION=(\S+)", (ROOT / "tools" / "setup.sh").read_text(), re.MULTILINE)
    assert expected is not None
    if torch.__version__.split("+")[0] != expected[1]:
        pytest.skip(f"the page was written with torch {expected[1]}")
    if os.environ.get("TRITON_INTERPRET") == "1":
        pytest.skip("another form of kernel")
    import walkthrough

    assert walkthrough.page() == walkthrough.PAGE.read_text(), "run python tools/walkthrough.py"


def test_the_api_page_lists_what_a_report_has() -> None:
    """Each public name of a report, and no other; of a region, the names that the page has exist."""
    from mixorder.inspection.explanation import Report
    from mixorder.record import RegionRecord

    public = {name for name in dir(Report) if name[0] != "_"} | set(Report.__dataclass_fields__)
    page = PAGES["api.md"].read_text()
    of_report, of_region = page.partition("## `Report`")[2].split("## `RegionRecord`")
    assert _first_cells(of_report) == public
    has = {name for name in dir(RegionRecord) if name[0] != "_"} | set(RegionRecord.__dataclass_fields__)
    assert _first_cells(of_region) <= has and len(_first_cells(of_region)) > 10


def _first_cells(text: str) -> set[str]:
    """The names in the first column of a text's tables, without their arguments."""
    cells = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    return {name for cell in cells for name in re.findall(r"`(\w+)", cell)}
