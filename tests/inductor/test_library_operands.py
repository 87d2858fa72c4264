"""Matrix products and convolutions read tensors of the same sizes and strides with mixorder as without.

Inductor pads tensors for them, and keeps some dense, by what it finds around them. Launches of ours change
what it finds: BERT under autocast once took 18% longer for it. Run in a process of its own, without a GPU,
where Inductor is told to pad on the CPU as well, and kernels do nothing.
"""

from __future__ import annotations

import re
from collections import Counter

from support.stand_in import found

SCRIPT = """
import json, torch
from support.stand_in import OURS, codes
from torch import nn
from torch._inductor import config

class Head(nn.Module):  # an output projection whose rows Inductor pads, behind a norm
    def __init__(self):
        super().__init__()
        self.mix, self.norm, self.out = nn.Linear(64, 64), nn.LayerNorm(64), nn.Linear(64, 1531, bias=False)
        self.shape = 64, 64
    def forward(self, x):
        logits = self.out(self.norm(nn.functional.gelu(self.mix(x))))
        return nn.functional.cross_entropy(logits, torch.zeros(len(x), dtype=torch.long))

class Picture(nn.Module):  # a norm over channels between convolutions
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Conv2d(3, 48, 3), nn.LayerNorm(48), nn.Conv2d(48, 8, 3)
        self.shape = 2, 3, 40, 40
    def forward(self, x):
        x = self.norm(self.first(x).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return self.last(x).square().mean()

class Block(nn.Module):  # attention over an odd number of tokens
    def __init__(self):
        super().__init__()
        self.norm, self.qkv, self.out = nn.RMSNorm(64), nn.Linear(64, 192), nn.Linear(64, 64)
        self.shape = 3, 1037, 64
    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        return (x + self.out((q @ k.mT).softmax(-1) @ v)).square().mean()

def compile(kind, ours):
    torch._dynamo.reset()
    made.clear()
    model = kind()
    compiled = torch.compile(model, options=OURS if ours else {"mixorder": False}, dynamic=False)
    with config.patch(disable_padding_cpu=False):
        compiled(torch.randn(model.shape, requires_grad=True)).backward()
    return list(made)

made = codes()
found = {}
for kind in (Head, Picture, Block):
    for ours in (False, True):
        found[f"{kind.__name__} {ours}"] = compile(kind, ours)
print(json.dumps(found))
"""
MODELS = ("Head", "Picture", "Block")
SHAPE = r"(\(.*?\)), (\(.*?\))"
MADE = (
    rf"assert_size_stride\((\w+), {SHAPE}",
    rf"(\w+) = empty_strided\w*\({SHAPE}",
    rf"(\w+) = reinterpret_tensor\(\w+, {SHAPE}",
)


def calls(code: str) -> Counter[tuple[str, ...]]:
    """The calls of libraries' operators: their names, and the sizes and strides of tensors they are given."""
    known: dict[str, str] = {}
    found = Counter[tuple[str, ...]]()
    for line in code[code.index("def call(") :].splitlines():
        for made in MADE:
            if seen := re.search(made, line):
                known[seen[1]] = f"{seen[2]} {seen[3]}"
        if seen := re.search(r"(\w+) = (\w+)(?:;|$|\s*#)", line):
            known[seen[1]] = known.get(seen[2], "")
        if call := re.search(r"(?:extern_kernels|torch\.ops\.\w+)\.([\w.]+)\((.*)\)", line):
            tensors = re.finditer(rf"reinterpret_tensor\(\w+, {SHAPE}|\b(\w+)\b(?=[,)]|$)", call[2])
            operands = (f"{t[1]} {t[2]}" if t[1] else known.get(t[3], "") for t in tensors)
            found[(call[1], *filter(None, operands))] += 1
    return found


def test_libraries_read_the_same_sizes_and_strides() -> None:
    # Inductor's wrapper code of each model, stock and mixorder: of the forward and of the backward.
    codes = found(SCRIPT)
    for name in MODELS:
        stock, ours = ([calls(code) for code in codes[f"{name} {way}"]] for way in (False, True))
        assert len(stock) == len(ours) == 2 and all(stock)
        assert "triton_mixorder" in codes[f"{name} True"][1]
        assert ours == stock, name
    # The gradient of the logits is padded, and a product reads it.
    stock = calls(codes["Head False"][1])
    assert any("1536" in operand for call in stock for operand in call)
