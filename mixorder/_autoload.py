"""Registers mixorder with torch without importing Inductor.

Each module of torch that mixorder extends has a callback. The callback gets the module at once if it
is loaded already, otherwise right after it has been executed. Must not import anything outside the
standard library, since `import torch` runs it.
"""

import difflib
import functools
import importlib
import sys
import warnings
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

# By the module that is extended: the function of `mixorder.plugin` that does it.
_CALLBACKS = {
    "torch._inductor.config": "register_options",
    "torch._inductor.compile_fx": "wrap_compile_fx",
    "torch._inductor.runtime.triton_heuristics": "fit_launches",
}


class _AfterImport:
    """A meta path finder that finds nothing itself: it adds a callback to modules that others find."""

    def __init__(self) -> None:
        self.pending: set[str] = set()

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        if fullname not in self.pending:
            return None
        for finder in sys.meta_path:
            find_spec = getattr(finder, "find_spec", None)
            if finder is self or find_spec is None:
                continue
            spec = find_spec(fullname, path, target)
            if spec is not None:
                self._call_back_after_exec(spec)
                return spec
        return None

    def _call_back_after_exec(self, spec: ModuleSpec) -> None:
        """Shadow `exec_module` on the loader for one call; the module keeps its real loader."""
        loader: Any = spec.loader
        execute = getattr(loader, "exec_module", None)
        if execute is None:
            return

        def exec_module(module: ModuleType) -> None:
            if vars(loader).get("exec_module") is exec_module:
                del loader.exec_module
            execute(module)
            self.loaded(spec.name, module)

        loader.exec_module = exec_module

    def loaded(self, name: str, module: ModuleType) -> None:
        self.pending.discard(name)
        if not self.pending:
            # A new list: an import in another thread may be iterating over the old one, and
            # would skip a finder if this one were removed in place.
            sys.meta_path = [finder for finder in sys.meta_path if finder is not self]
        try:
            getattr(importlib.import_module("mixorder.plugin"), _CALLBACKS[name])(module)
        except Exception as error:
            # A torch with unknown internals must still compile everything that it compiles without mixorder.
            warnings.warn(f"mixorder stays off: {name} is not as expected ({error!r})", stacklevel=2)


def _name_options(torch: Any) -> None:
    """Let torch answer a misspelt option of mixorder in a line, instead of with all options that it has."""
    wrapper = getattr(torch, "_TorchCompileInductorWrapper", None)
    original = getattr(wrapper, "apply_options", None)
    if original is None or hasattr(original, "__wrapped__"):
        return

    @functools.wraps(original)
    def apply_options(self: Any, options: Any) -> None:
        try:
            original(self, options)
        except RuntimeError as error:
            given = [str(name) for name in options if f"option {name}," in str(error)]
            named = [name.replace("-", "_") for name in given if "mixorder" in name]
            if not named:
                raise
            known = vars(sys.modules["torch._inductor.config"])["_config"]
            ours = [name for name in known if name.startswith("mixorder")]
            close = difflib.get_close_matches(named[0], ours, 1)
            meant = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(ours)}"
            raise RuntimeError(f"mixorder has no option {named[0]!r}: {meant}") from None

    wrapper.apply_options = apply_options  # type: ignore[union-attr]


_after_import = _AfterImport()


def register() -> None:
    """Have every callback run once its module is loaded. Idempotent."""
    _name_options(sys.modules.get("torch"))
    for name in _CALLBACKS:
        if name in sys.modules:
            # import_module waits if another thread is executing the module at this moment.
            _after_import.loaded(name, importlib.import_module(name))
        else:
            _after_import.pending.add(name)
    if _after_import.pending and _after_import not in sys.meta_path:
        sys.meta_path.insert(0, _after_import)
