"""The wheel: what is in it, that it asks for nothing, and that the option works once it is installed.

And an installation from a clone (`pip install -e`): used beside the clone, and after the clone has gone.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest
import sympy
import torch
from packaging.requirements import Requirement

import mixorder

ROOT = Path(__file__).resolve().parent.parent
BUILT_FROM = ("setup.py", "pyproject.toml", "constraints.txt", "_mixorder_plugin.py")
LINES = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
BOUNDS = {r.name: r.specifier for r in map(Requirement, LINES)}


def copied(source: Path) -> Path:
    """What a build needs, in a folder of its own, so that no build folder is left in the tree."""
    source.mkdir()
    for name in (*BUILT_FROM, "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "mixorder", source / "mixorder", ignore=shutil.ignore_patterns("__pycache__"))
    return source


def test_the_changelog_begins_with_this_version() -> None:
    versions = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert versions[0] == mixorder.__version__ and len(versions) == len(set(versions))


def build(source: Path, folder: Path, hook: str) -> Path:
    """The wheel that a hook of the build backend makes."""
    code = f"import sys, setuptools.build_meta as build; build.{hook}(sys.argv[1])"
    done = subprocess.run([sys.executable, "-c", code, folder], cwd=source, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = copied(tmp_path_factory.mktemp("source") / "mixorder")
    return build(source, tmp_path_factory.mktemp("wheel"), "build_wheel")


def installed(wheel: Path, folder: Path) -> Path:
    """The folder with what pip would write there of a pure wheel."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    for data in folder.glob("*.data/purelib/*"):
        data.rename(folder / data.name)
    return folder


def read(wheel: Path, name: str) -> str:
    with zipfile.ZipFile(wheel) as archive:
        (found,) = (n for n in archive.namelist() if n.endswith(name))
        return archive.read(found).decode()


def test_it_has_the_package_and_nothing_else(wheel: Path) -> None:
    assert wheel.name == f"mixorder-{mixorder.__version__}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as archive:
        names = {n for n in archive.namelist() if ".dist-info/" not in n}
    sources = {p for p in (ROOT / "mixorder").rglob("*") if p.suffix in (".py", ".json")}
    sources.add(ROOT / "mixorder" / "py.typed")
    plugin = f"mixorder-{mixorder.__version__}.data/purelib/_mixorder_plugin.py"
    assert names == {p.relative_to(ROOT).as_posix() for p in sources} | {plugin}


def test_it_leaves_torch_and_triton_alone(wheel: Path) -> None:
    lines = read(wheel, "METADATA").splitlines()
    required = [line for line in lines if line.startswith("Requires-Dist:")]
    assert required and all("extra ==" in line for line in required)
    assert any(line.startswith("Requires-Dist: torch>=2.11") for line in required)
    assert not any("triton" in line for line in required)


def test_what_tests_install_is_as_the_constraints_say(wheel: Path) -> None:
    asked = re.findall(r"^Requires-Dist: (.+); extra == .test.$", read(wheel, "METADATA"), re.MULTILINE)
    required = {r.name: r.specifier for r in map(Requirement, asked)}
    assert len(required) > 5 and required == {name: BOUNDS[name] for name in required}
    for name, versions in BOUNDS.items():
        assert sorted(v.operator for v in versions) in (["<", ">="], ["=="]), name


def test_scripts_install_into_an_environment_of_their_own_and_use_the_torch_that_is_there(
    tmp_path: Path,
) -> None:
    source = copied(tmp_path / "clone")
    shutil.copytree(ROOT / "tools", source / "tools", ignore=shutil.ignore_patterns("data", "__pycache__"))
    (tmp_path / "bin").mkdir()
    python = tmp_path / "bin" / "python3"  # a link would not know the environment that it points into
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    env = {**os.environ, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "PYTHONPATH": ""}
    shown = "import mixorder, sys, torch; print(sys.prefix, torch.__file__, mixorder.__file__, sep='\\n')"
    script = f'. tools/setup.sh; cd /; "$PY" -c "{shown}"'
    done = subprocess.run(
        ["bash", "-ec", script], cwd=source, env=env, capture_output=True, text=True, check=True
    )
    prefix, with_torch, with_mixorder = done.stdout.splitlines()
    assert prefix == str(source / ".venv") and with_torch == torch.__file__
    assert with_mixorder == str(source / "mixorder" / "__init__.py")
    assert "Installing into .venv: --no-build-isolation -e ." in done.stderr and "torch==" not in done.stderr


@pytest.mark.parametrize("script", ["tools/setup.sh", "tools/packages.sh", ".ci/run"])
def test_scripts_install_what_the_constraints_allow(script: str) -> None:
    text = (ROOT / script).read_text().replace("\\\n", "")
    commands = re.findall(r"pip install .+", text)
    assert commands and all("--constraint" in command for command in commands)
    assert not re.search(r"\w[=<>]=\d", text)
    named = " ".join(re.findall(r'--target "[^"]+" ([\w\s-]+[a-z])', text)).split()
    assert bool(named) == ("--target" in text) and set(named) <= BOUNDS.keys()


def test_its_description_has_no_link_that_leads_nowhere(wheel: Path) -> None:
    described = read(wheel, "METADATA").partition("\n\n")[2]
    assert described.startswith("# mixorder") and "tested pairs (`docs/supported.md`)" in described
    assert not re.findall(r"\]\((?!https?:)", described) and "`docs/lab/benchmark.md` has\nthese" in described
    assert "![" not in described and "(`#" not in described


def test_installed_the_option_works_with_nothing_else_said(wheel: Path, tmp_path: Path) -> None:
    installed(wheel, tmp_path)
    code = (
        "import torch, sys\n"
        "torch.compile(lambda x: x, options={'mixorder': True, 'mixorder_split_size': 4})\n"
        "print(sys.modules['mixorder'].__file__)"
    )
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=env, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).parent == tmp_path / "mixorder"
    assert "torch.backends" in read(wheel, "entry_points.txt")


def test_the_citation_is_of_this_release(wheel: Path) -> None:
    cited = dict(re.findall(r"^(\w+): (.+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE))
    described = dict(re.findall(r"^([\w-]+): (.+)$", read(wheel, "METADATA"), re.MULTILINE))
    for name, key in (("title", "Name"), ("version", "Version")):
        assert cited[name] == described[key]
    assert cited["abstract"].rstrip(".") == described["Summary"] and cited["license"] in read(
        wheel, "METADATA"
    )
    assert f"Release {cited['version']} " in (ROOT / "docs" / "supported.md").read_text()


# An editable installation.

# Folders with what torch needs: a virtual environment has some of it from the Python that it was made from.
WITH_TORCH = {str(Path(one.__file__).parents[1]) for one in (torch, sympy)}
CODE = """
import sys, site
site.addsitedir({site!r})  # where it is installed
sys.path += {torch!r}  # and not what lines in this folder's .pth files would add
from importlib.machinery import PathFinder
class Hidden:  # another mixorder that is installed where torch is
    @staticmethod
    def find_spec(name, path=None, target=None):
        if path is None and "mixorder" in name:
            found = PathFinder.find_spec(name, [p for p in sys.path if p not in {torch!r}], target)
            if found is None:
                raise ModuleNotFoundError(name)
            return found
sys.meta_path.insert(0, Hidden)
"""


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """Installed into `site` beside it."""
    source = copied(tmp_path / "mixorder")
    installed(build(source, tmp_path, "build_editable"), tmp_path / "site")
    return source


def from_parent_of(clone: Path, code: str, *others: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run code from the clone's parent folder, where `mixorder` is the clone, with no other installed but for
    what is hidden, where torch is. `others`: more such folders."""
    with_torch = [*others, sysconfig.get_path("purelib"), *WITH_TORCH]
    paths = {"site": str(clone.parent / "site"), "torch": with_torch}
    return subprocess.run(
        [sys.executable, "-S", "-c", CODE.format(**paths) + code],
        env={**{k: v for k, v in os.environ.items() if k != "PYTHONPATH"}, **env},
        cwd=clone.parent,
        capture_output=True,
        text=True,
    )


def test_a_clone_hides_nothing_and_torch_works_when_it_has_gone(
    clone: Path,
) -> None:
    code = (
        "import mixorder, torch\n"
        "torch.compile(lambda x: x, options={'mixorder': True})\n"
        "print(mixorder.explain, mixorder.__file__)"
    )
    active = clone.parent / "active"  # as after `pip install .` in the environment that tools/test.sh sees
    shutil.copytree(clone / "mixorder", active / "mixorder")
    done = from_parent_of(clone, code, str(active), TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().endswith(str(clone / "mixorder" / "__init__.py"))
    # Type checkers read lines that are paths, and run no import hooks.
    (lines,) = (path.read_text().split() for path in (clone.parent / "site").glob("*.pth"))
    assert lines == [str(clone)]
    shutil.rmtree(clone)
    done = from_parent_of(clone, "import torch; print(torch.ones(2).sum())", str(active))
    assert done.returncode == 0 and done.stdout == "tensor(2.)\n", done.stderr
    assert "mixorder is installed, but cannot be loaded" in done.stderr and "pip uninstall" in done.stderr
