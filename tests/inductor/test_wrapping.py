"""Functions of modules and classes, wrapped once."""

from __future__ import annotations

import types
from collections.abc import Callable

import pytest

from mixorder.inductor.wrapping import wrap


def module() -> types.ModuleType:
    class Writer:
        def line(self, text: str) -> str:
            """Written."""
            return text

    made = types.ModuleType("codegen")
    made.Writer, made.double = Writer, lambda x: 2 * x  # type: ignore[attr-defined]
    return made


def shouting(original: Callable[..., str], *args: object) -> str:
    return original(*args).upper()


def test_a_method_is_wrapped_once_and_keeps_its_name() -> None:
    owner = module()
    assert wrap(owner, "Writer.line", shouting)
    first = owner.Writer.line
    assert wrap(owner, "Writer.line", shouting) and owner.Writer.line is first
    assert owner.Writer().line("text") == "TEXT"
    assert first.__name__ == "line" and first.__doc__ == "Written."


def test_a_function_of_a_module_is_wrapped() -> None:
    owner = module()
    assert wrap(owner, "double", lambda original, x: original(x) + 1)
    assert owner.double(3) == 7


@pytest.mark.parametrize("path", ["Writer.lines", "Reader.line", "triple"])
def test_what_is_not_there_is_left_alone(path: str) -> None:
    owner = module()
    before = {name: dict(vars(owner.Writer)) for name in ("Writer",)}
    assert not wrap(owner, path, shouting)
    assert before == {"Writer": dict(vars(owner.Writer))} and not hasattr(owner, path)
