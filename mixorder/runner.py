"""Runs the stages of the pipeline: times and checks them, dumps what they give, and says what is a bug."""

from __future__ import annotations

import functools
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

from .errors import Decline, MixorderError
from .ir.verify import Form, verify
from .options import Options
from .report import Dump

T = TypeVar("T")


class Runner:
    """Runs stages for one region: what is neither a result nor a `Decline` is a bug, and says where.

    `known`: results by key, of this region and those before it in the graph.
    """

    def __init__(self, options: Options, dump: Dump, known: dict[Hashable, Any]) -> None:
        self.options = options
        self.files = dump
        self.known = known
        self.region = "graph"
        self.seconds: dict[str, float] = defaultdict(float)

    def step(self, stage: str, function: Callable[..., T], *args: Any) -> T:
        """What a stage gives. Raises `MixorderError` for all that it raises, other than `Decline`."""
        started = time.perf_counter()
        try:
            return function(*args)
        except Decline:
            raise
        except Exception as error:
            raise MixorderError(stage, self.region, error) from error
        finally:
            self.seconds[stage] += time.perf_counter() - started

    def show(self, name: str, value: T, form: Form | None = None) -> T:
        """Dump a value; in strict mode, verify a program that is to be of a form."""
        if form is not None and self.options.strict:
            self.step("verify", verify, value, form)
        self.step("dump", self.files.write, self.region, name, value)
        return value

    def once(self, key: Hashable | None, make: Callable[[], T]) -> T:
        """What `make` gave for the key the first time; made anew without a key, and for dumps of each."""
        if key is None or self.options.dump_dir:
            return make()
        if key not in self.known:
            self.known[key] = make()
        return self.known[key]

    def warn(self, error: MixorderError) -> None:
        """Warn of a bug, once per message; raise it in strict mode."""
        if self.options.strict:
            raise error
        warn_once(str(error))

    @property
    def stage_ms(self) -> tuple[tuple[str, float], ...]:
        return tuple((stage, 1e3 * seconds) for stage, seconds in self.seconds.items())


@functools.cache
def warn_once(message: str) -> None:
    warnings.warn(message, stacklevel=3)
