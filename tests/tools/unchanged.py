"""Which tests of tools a run may leave out: what they depend on is as on the default branch.

`python tests/tools/unchanged.py` prints their paths, and on the error stream why. It prints none, so that
all are run, on the default branch itself (a push may bring several commits), without the history that a
comparison takes (no git, a shallow clone), or if something changed that all may depend on.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DEFAULT_BRANCHES = ("origin/HEAD", "origin/main", "main")
FOLDERS = ("tools", "tests/tools", "tests", "examples")  # whose modules are imported by name
FOR_ALL = re.compile(r"mixorder/|[^/]*\.(py|toml)$|tests/conftest\.py$|(tools|tests/support)/.*(?<!\.py)$")


def git(root: Path, *args: str) -> str | None:
    """What git prints, or None if it fails."""
    try:
        done = subprocess.run(["git", "-C", str(root), *args], capture_output=True, text=True)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def base(root: Path) -> str | None:
    """The commit at which this branch left the default one; None on that one, or if it is unknown."""
    for branch in DEFAULT_BRANCHES:
        if git(root, "rev-parse", "--verify", branch):
            found = git(root, "merge-base", branch, "HEAD")
            return found if found != git(root, "rev-parse", "HEAD") else None
    return None


def changed(root: Path, since: str) -> set[str] | None:
    """Files that differ from a commit's, uncommitted and new ones included."""
    differ = git(root, "diff", "--name-only", "--no-renames", since)
    new = git(root, "ls-files", "--others", "--exclude-standard")
    return None if differ is None or new is None else {*differ.split("\n"), *new.split("\n")} - {""}


def uses(root: Path, path: Path) -> tuple[set[Path], str]:
    """A file and the modules in `FOLDERS` that it imports, at whatever depth; and all their text."""
    found, todo = set[Path](), [path]
    while todo:
        if (file := todo.pop()) in found:
            continue
        found.add(file)
        for name in imported(file):
            places = [file.parent, *(root / folder for folder in FOLDERS)]
            parts = name.split(".")
            paths = (p.joinpath(*parts[: i + 1]) for p in places for i in range(len(parts)))
            todo += [f for p in paths for f in (p.with_suffix(".py"), p / "__init__.py") if f.is_file()]
    return found, "\n".join(file.read_text() for file in found)


def imported(file: Path) -> Iterator[str]:
    """Dotted names, `from a import b` also as `a.b`; a leading dot is left out."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = f"{node.module}." if node.module else ""
            yield from (module + alias.name for alias in node.names)


def unchanged(root: Path = ROOT) -> tuple[list[str], str]:
    """The tests to leave out, and why these."""
    if (since := base(root)) is None or (files := changed(root, since)) is None:
        return [], "no default branch to compare with"
    if shared := sorted(filter(FOR_ALL.match, files)):
        return [], f"{shared[0]} has changed"
    left_out = []
    for test in sorted((root / "tests" / "tools").glob("test_*.py")):
        modules, text = uses(root, test)
        own = {str(module.relative_to(root)) for module in modules}
        if not own & files and not any(Path(file).name in text for file in files):
            left_out.append(str(test.relative_to(root)))
    return left_out, f"what they use is as in {since[:12]}"


if __name__ == "__main__":
    paths, why = unchanged()
    print(f"tests of tools left out: {' '.join(paths) or 'none'} ({why})", file=sys.stderr)
    for path in paths:
        print(path)
