"""The package imports only downwards; one folder has torch's private names, one module asks for versions."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from torch_names import is_private, paths, questions

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
    ("strategies",),
    ("tune",),
    ("record", "report"),
    ("runner", "planning", "search", "pipeline", "plugin", "_autoload"),
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
    "schedule/limits.py": ("torch", "triton"),
    "schedule/no_prefetch.py": ("torch", "triton"),
    "schedule/persistent_search_space.py": ("torch", "triton"),
    "schedule/cooperative.py": ("torch", "triton"),
    "tune/search.py": ("torch", "triton"),
    "tune/cache.py": ("torch", "triton"),
    "schedule/plan.py": ("torch", "triton"),
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
    assert {"inductor.versions", "inductor.config"} <= own("options.py")
    assert "torch._inductor.config" in imports("inductor/hooks.py")


def level(module: str) -> int:
    """The layer of a module: `ir.program` or `ir/program.py`."""
    first = re.split(r"[./]", module)[0]
    assert first in LEVEL, f"{module} is new: say in which layer it is"
    return LEVEL[first]


def test_imports_go_downwards() -> None:
    wrong = [(m, name) for m in MODULES for name in own(m) if level(name) > level(m)]
    assert wrong == []


def test_only_tests_of_tools_import_the_lab() -> None:
    """What `tools/` shares with the other tests is in `tests/support`."""
    tests = Path(__file__).parent
    others = [p for p in tests.rglob("*.py") if tests / "tools" not in p.parents]
    wrong = [p.name for p in others if re.search(r"^ *(from|import) lab\b", p.read_text(), re.MULTILINE)]
    assert wrong == [] and tests / "support" / "cases.py" in others


def test_the_lowest_layer_imports_nothing_of_the_others() -> None:
    """What `inductor/` calls of mixorder is handed to it."""
    assert own("errors.py") == set()
    wrong = [(m, n) for m in MODULES if m.startswith("inductor/") for n in own(m) if not _lowest(n)]
    assert wrong == []


def _lowest(name: str) -> bool:
    return within(name, ("inductor", "errors"))


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


def test_plain_modules_stay_plain() -> None:
    """`torch` itself is fine for the IR's dtypes, where only parts of it are named."""
    wrong = [(m, name) for m, names in FORBIDDEN.items() for name in imports(m) if within(name, names)]
    assert wrong == []


def test_only_the_rewrite_writes_graphs() -> None:
    """In lowerings.py an empty graph is made for Inductor to hold; it is given an output there."""
    for module in MODULES:
        called = {
            node.func.attr
            for node in ast.walk(tree(module))
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        }
        allowed = {"output"} if module == "inductor/lowerings.py" else set()
        if module.startswith("rewrite/"):
            continue
        assert called & GRAPH_WRITES <= allowed, module


def test_the_rewrite_does_write() -> None:
    source = "".join(path.read_text() for path in ROOT.glob("rewrite/*.py"))
    assert {w for w in GRAPH_WRITES if f".{w}(" in source} >= {
        "erase_node",
        "replace_all_uses_with",
        "call_function",
    }


def test_private_names_are_used_in_one_folder() -> None:
    """`_autoload.py` spells out modules of torch, whose import it waits for."""
    outside = [m for m in MODULES if not m.startswith("inductor/") and m != "_autoload.py"]
    wrong = [(m, path) for m in outside for path in sorted(paths(tree(m))) if is_private(path)]
    assert wrong == []


def test_versions_are_asked_for_in_one_module() -> None:
    """`doctor` shows Python's version, and the package states its own."""
    elsewhere = [m for m in MODULES if m not in {"inductor/versions.py", "cli/doctor.py", "__init__.py"}]
    wrong = [(m, question) for m in elsewhere for question in questions(tree(m))]
    assert wrong == []


LEAKS = {  # as they once stood
    "import torch._inductor.utils as utils\n(getattr(utils, 'fresh_cache', None) or utils.old)()": (1, 1),
    "def share(module: ModuleType):\n    getattr(module, 'generate_ttir', None)": (0, 1),
    "def check(module: ModuleType):\n    next(n for n in ANALYSES if hasattr(module, n))": (0, 1),
    "from torch._inductor.codegen.triton import TritonOverrides\nclass P(TritonOverrides): ...": (1, 0),
}
MADE_UP = {
    "import torch\ntorch._inductor.config.patch()": (1, 0),
    "import torch\ndef f():\n    import torch.fx\n    torch._C._jit()": (1, 0),
    "import importlib\nimportlib.import_module('torch._inductor.codegen.wrapper')": (1, 0),
    "from triton.runtime.interpreter import _get_np_dtype": (1, 0),
    "from torch import fx\nimport inspect\ninspect.signature(fx.Graph.lint).parameters": (0, 1),
    "from .inductor.config import inductor_config\nhasattr(inductor_config, 'deterministic')": (0, 1),
    "try:\n    from torch.fx import new\nexcept ImportError:\n    new = None": (0, 1),
    "import torch\nold = torch.__version__ < '2.13'": (0, 2),
    "from packaging import version": (0, 1),
    # And what is as it should be.
    "import torch\naten = torch.ops.aten\ntorch.ops.aten._unsafe_view.default": (0, 0),
    "import torch\nprops = torch.cuda.get_device_properties(0)\ngetattr(props, 'warp_size', 32)": (0, 0),
    "try:\n    import triton\nexcept ImportError:\n    raise": (0, 0),
    "from .inductor.config import inductor_config\ngetattr(inductor_config, key)": (0, 0),
    "def f(graph: Graph):\n    'As torch 2.13 has it.'\n    return getattr(graph, 'reason', None)": (0, 0),
}


@pytest.mark.parametrize("text", [*LEAKS, *MADE_UP])
def test_the_checks_see_what_they_must(text: str) -> None:
    syntax, (private, asked) = ast.parse(text), {**LEAKS, **MADE_UP}[text]
    found = {path for path in paths(syntax) if is_private(path)}
    assert (bool(found), len(list(questions(syntax)))) == (bool(private), asked)
