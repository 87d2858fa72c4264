"""Which names of torch and Triton a source file has, and whether it asks which version it has before it.

Takes syntax trees. Names count wherever they are imported, functions included.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Any

ROOTS = ("torch", "triton")
_VERSIONS = ("__version__", "version_info", "torch_version")
_RELEASE = re.compile(r"v?\d+\.\d+(\.\d+)?([.+a-z].*)?")
_PATH = re.compile(r"(torch|triton)(\.\w+)+")


def imported(tree: ast.AST) -> dict[str, str]:
    """Names in the file, and the dotted path of torch, Triton or `mixorder.inductor` that each stands for."""
    found: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                name = alias.name if alias.asname else alias.name.split(".")[0]
                found[alias.asname or name] = name
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            for alias in node.names:
                found[alias.asname or alias.name] = f"{base}.{alias.name}"
    return {name: path for name, path in found.items() if _is_torchs(path)}


def _is_torchs(path: str) -> bool:
    parts = path.lstrip(".").removeprefix("mixorder.").split(".")
    return parts[0] in ROOTS or (path.startswith((".", "mixorder")) and parts[0] == "inductor")


def path_of(node: ast.AST, names: dict[str, str]) -> str | None:
    """The dotted path of `name.attribute.attribute`, where the name is imported."""
    attributes: list[str] = []
    while isinstance(node, ast.Attribute):
        attributes.insert(0, node.attr)
        node = node.value
    if not isinstance(node, ast.Name) or node.id not in names:
        return None
    return ".".join([names[node.id], *attributes])


def paths(tree: ast.AST) -> set[str]:
    """Every path of torch or Triton: imported, used as far as its attributes are spelt out, or a text."""
    names = {name: path for name, path in imported(tree).items() if path.split(".")[0] in ROOTS}
    inner = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    found = set(names.values())
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name.split(".")[0] in ROOTS}
        elif isinstance(node, ast.Attribute | ast.Name) and id(node) not in inner:
            found |= {path} if (path := path_of(node, names)) else set()
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and _PATH.fullmatch(node.value):
            found.add(node.value)
    return found


def calls(tree: ast.AST) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """The paths that are called, each with the number of arguments by position and the names of the others.
    Calls with arguments that are not spelt out are left out."""
    names = {name: path for name, path in imported(tree).items() if path.split(".")[0] in ROOTS}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and (path := path_of(node.func, names)):
            keywords = [keyword.arg for keyword in node.keywords]
            if None not in keywords and not any(isinstance(arg, ast.Starred) for arg in node.args):
                yield path, (len(node.args), *keywords)


def is_private(path: str) -> bool:
    """Whether a component begins with an underscore; names of operators are not torch's modules."""
    if path.startswith("torch.ops."):
        return False
    return any(part.startswith("_") and not part.startswith("__") for part in path.split("."))


def questions(tree: ast.AST) -> Iterator[str]:
    """What asks for a version, or whether torch or Triton has something; as text."""
    names = imported(tree) | dict.fromkeys(_modules(tree), "torch")
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and node.args and path_of(node.args[0], names):
            function = ast.unparse(node.func).split(".")[-1]
            default = function == "getattr" and len(node.args) + len(node.keywords) > 2
            if default or function in ("hasattr", "signature", "getfullargspec", "vars", "dir"):
                yield ast.unparse(node)
        elif isinstance(node, ast.Try) and any(_expects_absence(handler) for handler in node.handlers):
            found = {p for statement in node.body for p in paths(statement) if p not in ROOTS}
            yield from sorted(f"try {path}" for path in found)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            if _RELEASE.fullmatch(node.value):
                yield repr(node.value)
        elif isinstance(node, ast.Attribute) and node.attr in (
            "__version__",
            "version_info",
            "torch_version",
        ):
            yield ast.unparse(node)
        elif isinstance(node, ast.Name) and node.id in ("TorchVersion", "parse_version"):
            yield node.id
        elif isinstance(node, ast.ImportFrom | ast.Import) and "packaging" in ast.unparse(node):
            yield ast.unparse(node)


def _modules(tree: ast.AST) -> Iterator[str]:
    """Parameters that are modules: torch's are the only ones that are handed about."""
    for node in ast.walk(tree):
        if isinstance(node, ast.arg) and node.annotation and "ModuleType" in ast.unparse(node.annotation):
            yield node.arg


def _expects_absence(handler: ast.ExceptHandler) -> bool:
    caught = ast.unparse(handler.type) if handler.type else ""
    return any(name in caught for name in ("ImportError", "ModuleNotFoundError", "AttributeError"))
