"""Functions without branches: the PTX, run by a small interpreter, and where the library is called."""

from __future__ import annotations

import re
from collections.abc import Callable

import graphs
import numpy as np
import pytest
import torch
from graphs import f32

from mixorder.codegen.branchless import FUNCTIONS as OURS
from mixorder.inductor.config import patched
from mixorder.ir.rewriting import rewritten
from mixorder.transform.branches import FUNCTIONS, OF_EAGER, PREFIX, without_branches

Values = dict[str, np.ndarray]
OPS: dict[str, Callable[..., np.ndarray]] = {
    "abs": np.abs,
    "neg": np.negative,
    "mul": np.multiply,
    "add": np.add,
    "sub": np.subtract,
    "fma": lambda a, b, c: (a.astype("f8") * b + c).astype("f4"),
    "ex2": np.exp2,
    "rcp": lambda a: np.float32(1) / a,
    "min": np.fmin,
    "shl": np.left_shift,
    "fma.sat": lambda a, b, c: np.nan_to_num((a.astype("f8") * b + c).clip(0, 1)).astype("f4"),
    "fma.rm": lambda a, b, c: down(a.astype("f8") * b + c),
    "setp.ge": np.greater_equal,
    "setp.ltu": lambda a, b: ~(a >= b),
    "selp": lambda a, b, p: np.where(p, a, b),
    "mov": lambda a: a,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
}


def down(x: np.ndarray) -> np.ndarray:
    """To float32, rounded down."""
    near = x.astype("f4")
    return np.where(near > x, np.nextafter(near, np.float32(-np.inf)), near)


def run(text: str, x: np.ndarray) -> np.ndarray:
    """The result of a call's instructions, one after the other, in float32."""
    (body,) = re.findall(r'elementwise\("\{(.*?)\}"', text)
    names: Values = {"$1": x}

    def operand(word: str, dtype: str) -> np.ndarray:
        constant = word.startswith(("0f", "0x"))
        if word.isdecimal():
            return np.full(x.shape, int(word), "u4")
        value = np.full(x.shape, int(word[2:], 16), "u4") if constant else names[word]
        return value if value.dtype == bool else value.view(dtype)

    for line in (line.strip() for line in body.split(";")):
        if line and not line.startswith("."):
            mnemonic, _, rest = line.partition(" ")
            target, *args = (word.strip() for word in rest.split(","))
            op, *kinds = mnemonic.split(".")
            op = next((f"{op}.{kind}" for kind in kinds if f"{op}.{kind}" in OPS), op)
            dtype = "u4" if mnemonic.endswith("b32") else "f4"
            names[target] = np.asarray(OPS[op](*(operand(word, dtype) for word in args)))
    return names["$0"]


def numbers() -> np.ndarray:
    """Float32 of all sizes, both signs, and what lies around the boundaries of the two ways."""
    every = torch.arange(0, 2**31 - 2**23, 9973, dtype=torch.int32).view(f32)
    around = torch.cat([torch.linspace(b - 1e-5, b + 1e-5, 201) for b in (0.6, 1.0029296, 9.0108)])
    found = torch.cat([every, around, torch.tensor([0.0, float("inf"), float("nan")])])
    return torch.cat([found, -found]).numpy()


@pytest.mark.parametrize("function", sorted(FUNCTIONS | OF_EAGER))
@pytest.mark.filterwarnings("ignore:overflow", "ignore:invalid", "ignore:divide")
def test_what_the_instructions_compute(function: str) -> None:
    """An approximate instruction is exact here: some results differ from the library's by a few ulp."""
    x = numbers()
    ours = OURS[PREFIX + function]
    result = run(ours.called("mark", "x"), x)
    exact = getattr(torch, function)(torch.from_numpy(x).double()).float().numpy()
    assert (np.isnan(result) == np.isnan(x)).all()
    assert (np.signbit(result) == np.signbit(exact))[~np.isnan(x)].all()
    number = ~np.isnan(x)
    assert (np.abs(result - exact)[number] <= 8 * np.spacing(np.abs(exact[number])) + 1e-38).all()
    assert np.allclose(ours.meaning(torch.from_numpy(x)).numpy(), exact, atol=1e-38, equal_nan=True)


def gelu(dy: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    dx = torch.ops.aten.gelu_backward(dy, x, approximate="tanh")
    return dx, dx.sum(0)


def test_where_the_library_is_called() -> None:
    full = ((4096, 512), f32)
    graph = graphs.traced(gelu, full, full)
    main, _ = graphs.kernels(graphs.only(graph))[2]
    assert "libdevice.tanh" not in main.text and "branchless_tanh" in main.text
    amd = graphs.merged(graphs.only(graph), runs_ptx=False)
    assert "tanh" in {getattr(s, "op", "") for s in amd.nests[0].body}
    with patched({"use_fast_math": True}):
        assert rewritten(amd, without_branches) == amd
    assert rewritten(amd, without_branches) != amd
