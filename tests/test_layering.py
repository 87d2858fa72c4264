"""The package imports only downwards, one module writes graphs, and versions are asked for once."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import mixorder

ROOT = Path(mixorder.__file__).parent
MODULES = sorted(p.relative_to(ROOT).as_posix() for p in ROOT.rglob("*.py"))

# In the order of the data: a module imports its own layer and those before it.
LAYERS = (
    ("errors", "inductor"),
    ("options",),
    ("ir",),
    ("region",),
    ("lowering",),
    ("transform",),
    ("schedule",),
    ("codegen",),
    ("rewrite",),
    ("tune",),
    ("record", "report"),
    ("strategies", "planning", "runner", "pipeline", "plugin", "_autoload"),
    ("demo_model", "inspection"),
    ("cli", "__init__", "__main__"),
)
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}

# What single modules must not even import from outside.
FORBIDDEN = {
    "errors.py": ("torch", "triton", "sympy"),
    "ir/reductions.py": ("torch._inductor", "torch.fx", "triton"),
    "ir/program.py": ("torch._inductor", "torch.fx", "triton"),
    "transform/split.py": ("torch._inductor", "torch.fx", "triton"),
    "transform/reorder.py": ("torch", "triton"),
    "transform/in_place.py": ("torch", "triton"),
    "ir/verify.py": ("torch", "triton"),
    "transform/cooperative.py": ("torch._inductor", "torch.fx", "triton"),
    "schedule/persistent.py": ("torch", "triton"),
    "schedule/persistent_space.py": ("torch", "triton"),
    "schedule/cooperative.py": ("torch", "triton"),
    "tune/search.py": ("torch", "triton"),
    "tune/cache.py": ("torch", "triton"),
    "schedule/schedule.py": ("torch", "triton"),
    "schedule/cost.py": ("torch", "triton"),
    "codegen/source.py": ("torch", "triton"),
    "codegen/exchange.py": ("torch", "triton"),
    "codegen/programmatic_launch.py": ("torch", "triton"),
    "region/axes.py": ("torch", "triton"),
    "region/region.py": ("torch._inductor", "triton"),
}

GRAPH_WRITES = {
    "erase_node", "replace_all_uses_with", "inserting_after", "inserting_before",
    "replace_input_with", "call_function", "create_node", "call_method", "placeholder",
    "eliminate_dead_code", "node_copy", "output", "prepend", "update_arg", "update_kwarg",
}  # fmt: skip


def tree(module: str) -> ast.Module:
    return ast.parse((ROOT / module).read_text())


def imports(module: str) -> set[str]:
    """Absolute names of all modules that a file imports, functions included."""
    package = ["mixorder", *module.split("/")[:-1]]
    found: set[str] = set()
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            name = ".".join([*base, *([node.module] if node.module else [])])
            # `from .region import legality` imports a module; `from .ir import Axis` a name.
            for alias in node.names:
                inner = ROOT.joinpath(*name.split(".")[1:], f"{alias.name}.py")
                is_module = name.startswith("mixorder") and inner.is_file()
                found.add(f"{name}.{alias.name}" if is_module else name)
    return found


def own(module: str) -> set[str]:
    return {name.removeprefix("mixorder.") for name in imports(module) if "mixorder." in name}


def within(name: str, parts: set[str] | tuple[str, ...]) -> bool:
    return any(name == part or name.startswith(f"{part}.") for part in parts)


def test_the_import_reader_sees_what_it_must() -> None:
    assert {"region.legality", "lowering.lower", "errors"} <= own("pipeline.py")
    assert "options" in own("inductor/hooks.py")
    assert "torch._inductor.config" in imports("options.py")


def level(module: str) -> int:
    """The layer of a module: `ir.program` or `ir/program.py`."""
    first = re.split(r"[./]", module)[0]
    assert first in LEVEL, f"{module} is new: say in which layer it is"
    return LEVEL[first]


@pytest.mark.parametrize("module", MODULES)
def test_imports_go_downwards(module: str) -> None:
    for name in own(module):
        assert level(name) <= level(module), f"{module} imports mixorder.{name}"


def test_there_is_no_import_cycle() -> None:
    names = {m.removesuffix(".py").replace("/", "."): m for m in MODULES}
    edges = {name: {n for n in own(path) if n in names} for name, path in names.items()}
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, " -> ".join([*path, name])
        if name not in done:
            for other in sorted(edges[name]):
                visit(other, (*path, name))
            done.add(name)

    # _autoload's callbacks import what it is imported for, later.
    edges["_autoload"] = set()
    for name in names:
        visit(name, ())


@pytest.mark.parametrize("module", FORBIDDEN)
def test_plain_modules_stay_plain(module: str) -> None:
    """`torch` itself is fine for the IR's dtypes, where only parts of it are named."""
    for name in imports(module):
        assert not within(name, FORBIDDEN[module]), f"{module} imports {name}"


@pytest.mark.parametrize("module", [m for m in MODULES if not m.startswith("rewrite/")])
def test_only_the_rewrite_writes_graphs(module: str) -> None:
    """In pointwise.py an empty graph is made for Inductor to hold; it is given an output there."""
    called = {
        node.func.attr
        for node in ast.walk(tree(module))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    }
    allowed = {"output"} if module == "lowering/pointwise.py" else set()
    assert called & GRAPH_WRITES <= allowed


def test_the_rewrite_does_write() -> None:
    source = "".join(path.read_text() for path in ROOT.glob("rewrite/*.py"))
    assert {w for w in GRAPH_WRITES if f".{w}(" in source} >= {
        "erase_node",
        "replace_all_uses_with",
        "call_function",
    }


@pytest.mark.parametrize("module", [m for m in MODULES if m not in {"inductor/versions.py", "cli/doctor.py"}])
def test_versions_are_asked_for_in_compat_only(module: str) -> None:
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.Attribute):
            assert node.attr not in {"__version__", "version_info", "torch_version"}, module
        if isinstance(node, ast.Name):
            assert node.id not in {"TorchVersion", "parse_version"}, module
    assert not any(within(n, {"packaging", "torch.version"}) for n in imports(module))


def test_functions_are_annotated() -> None:
    for module in MODULES:
        for node in ast.walk(tree(module)):
            if isinstance(node, ast.FunctionDef):
                assert node.returns is not None, f"{module}: {node.name}"
