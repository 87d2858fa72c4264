"""Runs the stages of the pipeline: times and checks them, dumps their results, and reports bugs."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

from .errors import Decline, MixorderError, warn_once
from .ir.verify import Form, verify
from .options import Options
from .report import Dump, failed

T = TypeVar("T")


class Runner:
    """Runs stages for one region. Any exception but `Decline` is a bug, and is reported with its stage.

    `known`: results by key, of this region and those before it in the graph.
    """

    def __init__(self, options: Options, dump: Dump, known: dict[Hashable, Any]) -> None:
        self.options = options
        self.files = dump
        self.known = known
        self.region = "graph"
        self.seconds: dict[str, float] = defaultdict(float)

    def step(self, stage: str, function: Callable[..., T], *args: Any) -> T:
        """The result of a stage. Raises `MixorderError` for every exception of it other than `Decline`:
        that of the innermost, where a stage runs others."""
        started = time.perf_counter()
        try:
            return function(*args)
        except (Decline, MixorderError):
            raise
        except Exception as error:
            raise MixorderError(stage, self.region, error) from error
        finally:
            self.seconds[stage] += time.perf_counter() - started

    def show(self, name: str, value: T, form: Form | None = None) -> T:
        """Dump a value and return it. In strict mode, first verify a program that must have a `form`."""
        if form is not None and self.options.strict:
            self.step("verify", verify, value, form)
        self.step("dump", self.files.write, self.region, name, value)
        return value

    def once(self, key: Hashable | None, make: Callable[[], T]) -> T:
        """The first result of `make` for a key. Without a key, or with dumps, `make` runs every time."""
        if key is None or self.options.dump_dir:
            return make()
        if key not in self.known:
            self.known[key] = make()
        return self.known[key]

    def warn(self, error: MixorderError) -> None:
        """Warn of a bug, once per message; raise it in strict mode."""
        if self.options.strict:
            raise error
        failed(error)
        warn_once(str(error))

    @property
    def stage_ms(self) -> tuple[tuple[str, float], ...]:
        return tuple((stage, 1e3 * seconds) for stage, seconds in self.seconds.items())
