"""Which modules ran in a model's graphs, under which path, and whether they take part in a backward.

Takes the graphs that dynamo has captured. After a graph break, and in a function, dynamo's names of modules
begin at a local variable. The keys beside the names are the modules' identities. By these, every node gets
the module's path from the model.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import Tensor, nn
from torch.fx import GraphModule, Node

_STACKS = ("nn_module_stack", "fwd_nn_module_stack")


@dataclasses.dataclass
class Called:
    """All calls of a module.

    `input_needs`: whether an input needs a gradient.
    `output_needs`: whether a result does.
    `has_backward`: whether a graph computes the module's backward.
    `numel`: elements of the largest input, of the smallest such call; 0 if that is unknown.
    """

    input_needs: bool = False
    output_needs: bool = False
    has_backward: bool = False
    numel: int = 0


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
    """The calls that the graphs of a module or function have of its modules; `found` is by path.

    `names`: of tensors, by identity. `same`: by the path of a module that runs in a graph captured for
    another module, the path of the other.
    """

    def __init__(self, function: Callable[..., Any], names: Mapping[int, str]) -> None:
        self.names = names
        modules = dict(modules_of(function))
        self.paths = {id(module): path for path, module in modules.items()}
        self.owners = {id(p): path for path, m in modules.items() for p in m.parameters(recurse=False)}
        self.found: dict[str, Called] = {}
        self.same: dict[str, str] = {}

    def watched(self, graph: Callable[..., Any], names: list[str]) -> Callable[..., Any]:
        """A compiled graph that notes the modules for which it runs again. It knows them by their parameters,
        which are its inputs. The first run fills in the inputs' names; that of an unknown one is empty."""
        first: list[str | None] = []

        def run(*args: Any) -> Any:
            owners = [self.owners.get(id(arg)) for arg in args]
            if not first:
                first.extend(owners)
                names.extend(self.names.get(id(arg), "") for arg in args)
            for was, now in zip(first, owners, strict=False):
                if was is not None and now is not None and was != now:
                    self._are_same(was, now)
            return graph(*args)

        return run

    def _are_same(self, was: str, now: str) -> None:
        """Note that two modules run in one graph, and so do their parents, up to a common one."""
        while was and now and was != now:
            self.same.setdefault(now, was)
            (was, _, end), (now, _, other_end) = was.rpartition("."), now.rpartition(".")
            if end != other_end:
                break

    def first_of(self, path: str) -> str:
        """The path of the module whose graph this module runs in: its own, or that of an equal one."""
        for end in [path, *_parents(path)]:
            if (first := self.same.get(end)) is not None:
                return first + path[len(end) :]
        return path

    def forward(self, graph: GraphModule) -> None:
        """Note the calls in a graph that dynamo has captured, and write the paths on its nodes."""
        for node in _nodes(graph):
            if node.op not in ("placeholder", "get_attr", "output"):
                for path in self._paths(node):
                    self._note(path, node)
        for node in _nodes(graph):
            for name in _STACKS:
                if stack := node.meta.get(name):
                    node.meta[name] = {key: self._entry(key, entry) for key, entry in stack.items()}

    def backward(self, graph: GraphModule) -> None:
        """Note the modules whose backward a graph of AOTAutograd computes."""
        for node in _nodes(graph):
            for path in self._paths(node):
                self.found.setdefault(path, Called()).has_backward = True

    def _note(self, path: str, node: Node) -> None:
        called = self.found.setdefault(path, Called())
        called.output_needs |= _needs_grad(node)
        outside = [n for n in node.all_input_nodes if n.op == "placeholder" or path not in self._paths(n)]
        inputs = [n for n in outside if not _is_parameter(n)]
        called.input_needs |= any(map(_needs_grad, inputs))
        if numel := max(map(_numel, inputs), default=0):
            called.numel = min(called.numel or numel, numel)

    def _paths(self, node: Node) -> list[str]:
        """The paths of the modules that a node is in, from the outermost to the innermost."""
        stack: dict[str, Any] = next(
            (node.meta[name] for name in reversed(_STACKS) if node.meta.get(name)), {}
        )
        found = (self._path(key) for key in stack)
        return [path for path in found if path is not None]

    def _path(self, key: str) -> str | None:
        """The path of a module by its identity. The key of a second call ends in `@1`."""
        identity = str(key).partition("@")[0]
        return self.paths.get(int(identity)) if identity.isdigit() else None

    def _entry(self, key: str, entry: Any) -> Any:
        path = self._path(key)
        return entry if path is None else (f"L['self'].{path}".rstrip("."), entry[1])


def _parents(path: str) -> list[str]:
    parts = path.split(".")
    return [".".join(parts[:n]) for n in range(len(parts) - 1, 0, -1)]


def _nodes(graph: GraphModule) -> Iterator[Node]:
    """The nodes of a graph, and of the graphs in it."""
    for module in graph.modules():
        if isinstance(module, GraphModule):
            yield from module.graph.nodes


def _needs_grad(node: Node) -> bool:
    values = node.meta.get("example_value")
    leaves = values if isinstance(values, (tuple, list)) else (values,)
    return any(isinstance(value, Tensor) and value.requires_grad for value in leaves)


def _numel(node: Node) -> int:
    """How many elements a node's tensor has; 0 where that is unknown."""
    value = node.meta.get("example_value")
    numel = value.numel() if isinstance(value, Tensor) else 0
    return numel if isinstance(numel, int) else 0


def _is_parameter(node: Node) -> bool:
    return node.op == "get_attr" or isinstance(node.meta.get("example_value"), nn.Parameter)
