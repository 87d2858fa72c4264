"""Which tests of tools may be left out, in repositories made for it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from unchanged import unchanged

FILES = {
    "mixorder/a.py": "",
    "tools/one.py": "import _shared\n",
    "tools/two.py": "from lab import part\n",
    "tools/lab/__init__.py": "",
    "tools/lab/part.py": "from .other import x\n",
    "tools/lab/other.py": "x = 1\n",
    "tools/_shared.py": "",
    "tools/data.json": "",
    "tests/tools/test_one.py": "import one\n",
    "tests/tools/test_two.py": "import two\nPAGE = 'docs/page.md'\n",
    "docs/page.md": "",
    "docs/none.md": "",
}


def git(root: Path, *args: str) -> None:
    names = ["-c", "user.name=t", "-c", "user.email=t@t", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", "-C", str(root), *names, *args], check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    git(tmp_path, "init", "-b", "main")
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-m", "all")
    return tmp_path


ONE, TWO = "tests/tools/test_one.py", "tests/tools/test_two.py"


@pytest.mark.parametrize(
    ("file", "left_out"),
    [
        ("docs/none.md", [ONE, TWO]),
        ("docs/page.md", [ONE]),
        ("tools/one.py", [TWO]),
        ("tools/lab/other.py", [ONE]),
        ("tests/tools/test_two.py", [ONE]),
        ("tools/new.py", [ONE, TWO]),
        ("tools/data.json", []),
        ("mixorder/a.py", []),
        ("tests/conftest.py", []),
    ],
)
@pytest.mark.parametrize("committed", [False, True])
def test_what_a_change_lets_be_left_out(
    repository: Path, file: str, left_out: list[str], committed: bool
) -> None:
    git(repository, "checkout", "-b", "branch")
    git(repository, "commit", "--allow-empty", "-m", "first")
    (repository / file).write_text((repository / file).read_text() + "\n" if file in FILES else "")
    if committed:
        git(repository, "add", "-A")
        git(repository, "commit", "-m", "second")
    assert unchanged(repository)[0] == left_out


def test_all_run_without_something_to_compare_with(
    repository: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    assert unchanged(repository)[0] == []  # the default branch itself
    git(repository, "checkout", "-b", "branch")
    git(repository, "commit", "--allow-empty", "-m", "empty")
    assert unchanged(repository)[0] == [ONE, TWO]
    shallow = tmp_path_factory.mktemp("shallow") / "clone"
    git(repository, "clone", "--depth", "1", f"file://{repository}", str(shallow))
    assert unchanged(shallow)[0] == []
    assert unchanged(tmp_path_factory.mktemp("none"))[0] == []
