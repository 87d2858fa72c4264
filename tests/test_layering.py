"""The package imports only downwards, one module writes graphs, and versions are asked for once."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import mixorder

ROOT = Path(mixorder.__file__).parent
MODULES = sorted(p.relative_to(ROOT).as_posix() for p in ROOT.rglob("*.py"))

# What each part may import of the package besides itself.
ALLOWED: dict[str, set[str]] = {
    "errors.py": set(),
    "options.py": {"_compat"},
    "_compat.py": set(),
    "_autoload.py": {"options", "install", "launches", "spelling"},
    "spelling.py": {"options"},
    "loops": {"errors", "graph.axes", "graph.gathers", "graph.nodes", "graph.region"},
    "graph": {"errors", "loops.ir"},
    "graph/rewrite.py": {
        "analysis",
        "errors",
        "loops.ir",
        "loops.split",
        "codegen.exchange",
        "codegen.load",
        "codegen.source",
    },
    "schedule": {"errors", "loops.alignment", "loops.ir"},
    "tune": {"loops.ir", "loops.split", "schedule", "codegen"},
    "tune/search.py": {"schedule"},
    "tune/cache.py": {"schedule.schedule"},
    "tune/compile.py": {"loops.ir", "codegen", "_compat"},
    "tune/tuner.py": {
        "errors",
        "options",
        "loops.ir",
        "loops.reload",
        "loops.share",
        "loops.split",
        "schedule",
        "codegen.kernel",
        "_compat",
    },
    "schedule/cost.py": {"errors", "loops.ir", "loops.split"},
    "schedule/sharing.py": {"errors", "loops.alignment", "loops.ir", "loops.share"},
    "codegen": {
        "errors",
        "loops.alignment",
        "loops.halves",
        "loops.ir",
        "loops.share",
        "loops.split",
        "schedule.schedule",
    },
    "record.py": {
        "errors",
        "codegen.source",
        "graph.nodes",
        "graph.origin",
        "graph.region",
        "loops.ir",
        "schedule.cost",
        "schedule.expected",
        "schedule.schedule",
        "tune.search",
    },
    "report.py": {"errors", "record"},
    "inspection": {
        "errors",
        "options",
        "pipeline",
        "record",
        "report",
        "spelling",
        "graph.origin",
        "loops.ir",
        "loops.split",
        "schedule.device",
        "_compat",
    },
    "interpret.py": {"options", "pipeline", "codegen.exchange", "_compat"},
    "retry.py": {"record", "report"},
    "install.py": {"options", "pipeline", "analysis", "interpret", "launches", "retry", "_compat"},
    "launches.py": {"_compat", "analysis", "codegen.dependent"},
    "analysis.py": set(),
}
FREE = {"__init__.py", "__main__.py", "demo_model.py", "pipeline.py"}  # the top: may use everything
FREE |= {m for m in MODULES if m.startswith("cli/")}

# What single modules must not even import from outside.
FORBIDDEN = {
    "errors.py": ("torch", "triton", "sympy"),
    "loops/ir.py": ("torch._inductor", "torch.fx", "triton"),
    "loops/split.py": ("torch._inductor", "torch.fx", "triton"),
    "loops/reorder.py": ("torch", "triton"),
    "loops/overwrite.py": ("torch", "triton"),
    "loops/verify.py": ("torch", "triton"),
    "loops/share.py": ("torch._inductor", "torch.fx", "triton"),
    "schedule/heuristics.py": ("torch", "triton"),
    "schedule/candidates.py": ("torch", "triton"),
    "schedule/sharing.py": ("torch", "triton"),
    "tune/search.py": ("torch", "triton"),
    "tune/cache.py": ("torch", "triton"),
    "schedule/schedule.py": ("torch", "triton"),
    "schedule/cost.py": ("torch", "triton"),
    "codegen/source.py": ("torch", "triton"),
    "codegen/exchange.py": ("torch", "triton"),
    "codegen/dependent.py": ("torch", "triton"),
    "graph/axes.py": ("torch", "triton"),
    "graph/region.py": ("torch._inductor", "triton"),
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
            # `from .graph import legality` imports a module; `from .ir import Axis` a name.
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
    assert {"graph.legality", "loops.lower", "errors"} <= own("pipeline.py")
    assert "pipeline" in own("install.py")
    assert "torch._inductor.config" in imports("options.py")


@pytest.mark.parametrize("module", [m for m in MODULES if m not in FREE])
def test_imports_go_downwards(module: str) -> None:
    folder = module.split("/")[0]
    if module.endswith("/__init__.py"):
        assert own(module) == set()
        return
    allowed = ALLOWED.get(module, ALLOWED.get(folder))
    assert allowed is not None, f"{module} is new: say here what it may import"
    inside = {folder} if "/" in module else set()
    for name in own(module):
        assert within(name, allowed | inside), f"{module} imports mixorder.{name}"


def test_codegen_and_schedule_do_not_know_the_graph() -> None:
    for module in MODULES:
        if module.startswith(("codegen/", "schedule/")):
            assert not any(within(name, {"graph"}) for name in own(module)), module


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


@pytest.mark.parametrize("module", [m for m in MODULES if m != "graph/rewrite.py"])
def test_only_the_rewrite_writes_graphs(module: str) -> None:
    """In boxes.py an empty graph is made for Inductor to hold; it is given an output there."""
    called = {
        node.func.attr
        for node in ast.walk(tree(module))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    }
    allowed = {"output"} if module == "loops/boxes.py" else set()
    assert called & GRAPH_WRITES <= allowed


def test_the_rewrite_does_write() -> None:
    source = (ROOT / "graph/rewrite.py").read_text()
    assert {w for w in GRAPH_WRITES if f".{w}(" in source} >= {
        "erase_node",
        "replace_all_uses_with",
        "call_function",
    }


@pytest.mark.parametrize("module", [m for m in MODULES if m not in {"_compat.py", "cli/doctor.py"}])
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
