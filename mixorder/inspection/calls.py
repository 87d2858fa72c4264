"""Which modules ran in a model's graphs, and under which path.

Takes the graphs that dynamo has captured. After a graph break, and in a function, dynamo's names of modules
begin at a local variable. The keys beside the names are the modules' identities. By these, every node gets
the module's path from the model.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor, nn
from torch.fx import GraphModule, Node

_STACKS = ("nn_module_stack", "fwd_nn_module_stack")


def modules_of(function: Callable[..., Any]) -> Iterator[tuple[str, nn.Module]]:
    """Paths and modules: of a module, of the module that a method belongs to, or of the modules that a
    function uses by its own names."""
    owner = getattr(function, "__self__", function)
    if isinstance(owner, nn.Module):
        yield from owner.named_modules()
    elif inspect.isfunction(function):
        try:
            names = inspect.getclosurevars(inspect.unwrap(function))  # as under `torch.no_grad()`
        except ValueError:  # a variable that has no value yet
            return
        for name, value in {**names.globals, **names.nonlocals}.items():
            if isinstance(value, nn.Module):
                yield from value.named_modules(prefix=name)


class Calls:
    """The calls that graphs have of the modules of a module or function.

    `sizes`: by the path of a module that ran, how many elements its largest tensor has; 0 if that is unknown.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.paths = {id(module): path for path, module in modules_of(function)}
        self.sizes: dict[str, int] = {}

    def add(self, graph: GraphModule) -> None:
        """Note the calls in a graph that dynamo has captured, and write the paths on its nodes."""
        for node in _nodes(graph):
            for name in _STACKS:
                if stack := node.meta.get(name):
                    node.meta[name] = {key: self._entry(key, entry, node) for key, entry in stack.items()}

    def _entry(self, key: str, entry: Any, node: Node) -> Any:
        path = self._path(key)
        if path is None:
            return entry
        if node.op not in ("placeholder", "get_attr", "output"):
            self.sizes[path] = max(self.sizes.get(path, 0), _numel(node))
        return f"L['self'].{path}".rstrip("."), entry[1]

    def _path(self, key: str) -> str | None:
        """The path of a module by its identity. The key of a second call ends in `@1`."""
        identity = str(key).partition("@")[0]
        return self.paths.get(int(identity)) if identity.isdigit() else None


def _nodes(graph: GraphModule) -> Iterator[Node]:
    """The nodes of a graph, and of the graphs in it."""
    for module in graph.modules():
        if isinstance(module, GraphModule):
            yield from module.graph.nodes


def _numel(node: Node) -> int:
    """How many elements a node's tensor has; 0 where that is unknown."""
    value = node.meta.get("example_value")
    numel = value.numel() if isinstance(value, Tensor) else 0
    return numel if isinstance(numel, int) else 0
