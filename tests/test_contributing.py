"""What docs/contributing.md names is there: files, the symbols of a module, the members of a class."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "mixorder"
TEXT = (ROOT / "docs/contributing.md").read_text()
DOTTED = sorted(set(re.findall(r"`(?:python |bash )?([\w/]+(?:\.\w+)+)[^`]*`", TEXT)))
FILES = [name for name in DOTTED if name.endswith((".py", ".sh", ".md", ".json"))]
SYMBOLS = [name for name in DOTTED if name not in FILES]
CONSTANTS = sorted(set(re.findall(r"`([A-Z]\w+)(?:\([^`]*)?`", TEXT)))


def bound(body: list[ast.stmt]) -> set[str]:
    """The names that the statements of a module or a class bind."""
    found: set[str] = set()
    for stmt in body:
        if isinstance(stmt, ast.ClassDef | ast.FunctionDef):
            found.add(stmt.name)
        elif isinstance(stmt, ast.Assign | ast.AnnAssign):
            targets = stmt.targets if isinstance(stmt, ast.Assign) else [stmt.target]
            found |= {target.id for target in targets if isinstance(target, ast.Name)}
    return found


@functools.cache
def members() -> dict[str, set[str]]:
    """What each module of the package binds, by its path and its name, and each class, by its name."""
    found: dict[str, set[str]] = {}
    for folder in (PACKAGE, ROOT / "tests"):
        for path in folder.rglob("*.py"):
            tree = ast.parse(path.read_text())
            for name in (path.stem, path.relative_to(folder).with_suffix("").as_posix()):
                found.setdefault(name, set()).update(bound(tree.body))
            for stmt in tree.body:
                if isinstance(stmt, ast.ClassDef):
                    found.setdefault(stmt.name, set()).update(bound(stmt.body))
    return found


@pytest.mark.parametrize("name", FILES)
def test_files(name: str) -> None:
    assert any((folder / name).exists() for folder in (ROOT, PACKAGE, ROOT / "docs"))


@pytest.mark.parametrize("name", SYMBOLS)
def test_symbols(name: str) -> None:
    owner, _, member = name.rpartition(".")
    if owner in members():
        assert member in members()[owner], name
    elif name.split(".")[0] in ("aten", "prims"):
        functools.reduce(getattr, name.split("."), torch.ops)
    else:  # of torch, private: the package names it
        sources = [path.read_text() for path in (PACKAGE / "inductor").glob("*.py")]
        assert all(any(part in text for text in sources) for part in (owner, member)), name


@pytest.mark.parametrize("name", CONSTANTS)
def test_constants_and_classes(name: str) -> None:
    assert any(name in names for names in members().values()), name


def test_names_are_found() -> None:
    assert {"pipeline.py", "ir/reductions.py"} <= {name.removeprefix("mixorder/") for name in FILES}
    assert {"ReductionKind.tile", "nodes.REDUCTIONS"} <= set(SYMBOLS)
    assert {"ReductionKind", "XOR", "KINDS"} <= set(CONSTANTS)
