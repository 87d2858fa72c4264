"""The wheel: what is in it, that it asks for nothing, and that the option works once it is installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import mixorder

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, so that no build folder is left in the tree."""
    source, built = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "mixorder", source / "mixorder", ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    done = subprocess.run([*command, "-w", built, source], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (path,) = built.glob("*.whl")
    return path


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
    assert names == {p.relative_to(ROOT).as_posix() for p in sources}


def test_it_leaves_torch_and_triton_alone(wheel: Path) -> None:
    lines = read(wheel, "METADATA").splitlines()
    required = [line for line in lines if line.startswith("Requires-Dist:")]
    assert required and all("extra ==" in line for line in required)
    assert any(line.startswith("Requires-Dist: torch>=2.11") for line in required)


def test_installed_the_option_works_with_nothing_else_said(wheel: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", tmp_path, wheel]
    subprocess.run(command, check=True, capture_output=True)
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
