"""Simpler programs than a failing one, for a shrinker, which takes the first that still fails."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from support.operators import DEFAULTS
from support.programs import OPS, Program


def smaller(program: Program) -> Iterator[Program]:
    """Simpler programs, the boldest first. A shrinker takes the first that still fails, and asks again."""
    for candidate in (*_fewer(program), *_plainer(program), *_shorter(program)):
        candidate = candidate.without_dead_steps()
        if candidate != program and candidate.sound:
            yield candidate


def _fewer(program: Program) -> Iterator[Program]:
    """With fewer outputs, then with fewer steps; arguments from removed steps become inputs."""
    for output in program.outputs if len(program.outputs) > 1 else ():
        yield dataclasses.replace(program, outputs=(output,))
    for i in range(len(program.outputs) if len(program.outputs) > 2 else 0):
        yield dataclasses.replace(program, outputs=program.outputs[:i] + program.outputs[i + 1 :])
    steps = {s.name for s in program.steps}
    made_of = {s.name: [a for a in s.args if a in steps] for s in program.steps}
    for i, (output, _) in enumerate(program.outputs):
        for name in made_of.get(output, ()):
            outputs = (*program.outputs[:i], (name, "plain"), *program.outputs[i + 1 :])
            yield dataclasses.replace(program, outputs=tuple(dict.fromkeys(outputs)))
    length = len(program.steps) // 2
    while length:
        for start in range(0, len(program.steps), length):
            yield dataclasses.replace(program, steps=program.steps[:start] + program.steps[start + length :])
        length //= 2
    for i, step in enumerate(program.steps):
        for j, name in enumerate(step.args):
            plain = DEFAULTS[OPS[step.op].args[j]]
            plain = plain if plain.isidentifier() else ""
            if name != plain:
                args = (*step.args[:j], plain, *step.args[j + 1 :])
                steps = (*program.steps[:i], dataclasses.replace(step, args=args), *program.steps[i + 1 :])
                yield dataclasses.replace(program, steps=steps)


def _plainer(program: Program) -> Iterator[Program]:
    """With what is usual, one thing at a time, or less of what there are several."""
    for field in dataclasses.fields(program):
        if field.name != "seed" and field.default is not dataclasses.MISSING:
            yield dataclasses.replace(program, **{field.name: field.default})
    yield dataclasses.replace(program, dtype="float32", weight_dtype="float32")
    yield dataclasses.replace(program, outputs=tuple((name, "plain") for name, _ in program.outputs))
    for name in ("planted", "sizes"):
        several = getattr(program, name)
        for i in range(len(several) if len(several) > 1 else 0):
            yield dataclasses.replace(program, **{name: several[:i] + several[i + 1 :]})


def _shorter(program: Program) -> Iterator[Program]:
    """With fewer elements, one axis at a time."""
    for dim, size in enumerate(program.shape):
        for now in sorted({1, 2, size // 2, size - 1}):
            if 0 < now < size:
                shape = (*program.shape[:dim], now, *program.shape[dim + 1 :])
                yield dataclasses.replace(program, shape=shape)
