"""The ways of running a merged program: a file each, and no other module of the package names one.

The pipeline takes the first of `STRATEGIES` that does not decline; the tuner tries all of them.
"""

from __future__ import annotations

import importlib
import pkgutil

from .strategy import Strategy


def discover() -> tuple[Strategy, ...]:
    """The strategies that the modules of this package define, in the order in which they are tried."""
    modules = (importlib.import_module(f"{__name__}.{info.name}") for info in pkgutil.iter_modules(__path__))
    values = (value for module in modules for value in vars(module).values())
    every = dict.fromkeys(value for value in values if isinstance(value, Strategy))
    return tuple(sorted(every, key=lambda strategy: strategy.rank))


STRATEGIES = discover()
