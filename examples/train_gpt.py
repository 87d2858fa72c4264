"""Train a small GPT on a synthetic corpus without mixorder and with it, and compare the loss curves.

The only line that is mixorder's is the one with `options=`. Weights, batches and their order are the same in
both runs, so that the curves differ by rounding alone. Writes `loss.json`, and `loss.png` where matplotlib is
installed, into --out. Without a GPU a much smaller model runs in the Triton interpreter, for a few steps.

    python examples/train_gpt.py                       # on a GPU: 300 steps each way, under a minute
    python examples/train_gpt.py --steps 2000 --layers 12 --dim 768

Exit status: 0; 1 if the curves part.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

APART = 0.02  # how far the curves may be from each other at the end, as a share of the loss


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Of the model and its batches; `steps` of training."""

    layers: int
    dim: int
    heads: int
    batch: int
    tokens: int
    steps: int


GPU, INTERPRETED = Sizes(6, 384, 6, 64, 256, 300), Sizes(1, 32, 2, 4, 16, 8)


# The corpus: sentences of a small grammar, letter by letter.

WORDS = {
    "article": ["the", "a", "every", "no", "some"],
    "noun": ["kernel", "row", "column", "tile", "gradient", "warp", "norm", "loop", "weight", "sum"],
    "verb": ["reads", "writes", "holds", "shares", "reduces", "waits for", "adds up", "keeps", "reloads"],
    "adverb": ["twice", "once", "in order", "at last", "again", "slowly"],
}
SENTENCE = ("article", "noun", "verb", "article", "noun", "adverb")
LETTERS = " .abcdefghijklmnopqrstuvwxyz"


def corpus(letters: int, seed: int = 0) -> Tensor:
    """Indices into `LETTERS`."""
    draw, text = random.Random(seed), ""
    while len(text) < letters:
        text += " ".join(draw.choice(WORDS[kind]) for kind in SENTENCE) + ". "
    return torch.tensor([LETTERS.index(letter) for letter in text[:letters]])


# The model.


class Block(nn.Module):
    """Pre-norm attention and MLP."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, dim = x.shape
        heads = self.qkv(self.norm1(x)).view(batch, tokens, 3, self.heads, dim // self.heads)
        q, k, v = heads.permute(2, 0, 3, 1, 4).unbind()
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, tokens, dim))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    """Letters in, the loss of the next letter out."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.letter = nn.Embedding(len(LETTERS), sizes.dim)
        self.place = nn.Embedding(sizes.tokens, sizes.dim)
        self.blocks = nn.Sequential(*(Block(sizes.dim, sizes.heads) for _ in range(sizes.layers)))
        self.norm, self.head = nn.LayerNorm(sizes.dim), nn.Linear(sizes.dim, len(LETTERS), bias=False)

    def forward(self, letters: Tensor, following: Tensor) -> Tensor:
        place = torch.arange(letters.shape[1], device=letters.device)
        x = self.norm(self.blocks(self.letter(letters) + self.place(place)))
        return F.cross_entropy(self.head(x).float().flatten(0, 1), following.flatten())


# Training.


def compiled(model: nn.Module, mixorder: bool) -> Callable[[Tensor, Tensor], Tensor]:
    """On a GPU, what a user writes. Without one, Inductor's graph with the kernels interpreted."""
    if torch.cuda.is_available():
        return torch.compile(model, options={"mixorder": mixorder})
    from mixorder.options import Options
    from mixorder.plugin import compile_for_interpreter

    options = Options(enabled=mixorder, strict=True, interpret=True, min_numel=0)
    return torch.compile(model, backend=compile_for_interpreter(options))


def train(sizes: Sizes, mixorder: bool) -> tuple[list[float], float]:
    """The loss of each step, and the median of the steps' milliseconds, the first ones left out."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    torch._dynamo.reset()
    model = GPT(sizes).to(device)
    step, optimizer = compiled(model, mixorder), torch.optim.AdamW(model.parameters(), lr=1e-3)
    text = corpus(200_000).to(device)
    draw = torch.Generator().manual_seed(1)
    losses, times = [], []
    for _ in range(sizes.steps):
        start = torch.randint(len(text) - sizes.tokens - 1, (sizes.batch, 1), generator=draw).to(device)
        batch = text[start + torch.arange(sizes.tokens + 1, device=device)]
        began = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device, torch.bfloat16):
            loss = step(batch[:, :-1], batch[:, 1:])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())  # waits for the device
        times.append(1e3 * (time.perf_counter() - began))
    return losses, statistics.median(times[len(times) // 5 :])


def apart(one: list[float], other: list[float]) -> float:
    """The mean distance of two curves over their last quarter, as a share of the loss there."""
    last = len(one) - max(1, len(one) // 4)
    distances = [abs(a - b) for a, b in zip(one[last:], other[last:], strict=True)]
    return statistics.mean(distances) / statistics.mean(other[last:])


def picture(path: Path, stock: list[float], ours: list[float]) -> bool:
    """Both curves, and their difference below; False without matplotlib."""
    try:
        import matplotlib
    except ImportError:
        return False
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (above, below) = pyplot.subplots(
        2, 1, sharex=True, figsize=(8, 5.5), height_ratios=(3, 1), layout="constrained"
    )
    above.plot(stock, label="Inductor", color="tab:blue", linewidth=3, alpha=0.5)
    above.plot(ours, label="with mixorder", color="tab:red", linewidth=1)
    above.set_ylabel("loss")
    above.legend()
    below.plot([a - b for a, b in zip(ours, stock, strict=True)], color="gray", linewidth=1)
    below.set_ylabel("difference")
    below.set_xlabel("step")
    figure.savefig(path, dpi=110)
    return True


def main() -> int:
    sizes = GPU if torch.cuda.is_available() else INTERPRETED
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for field in dataclasses.fields(Sizes):
        default = getattr(sizes, field.name)
        parser.add_argument(f"--{field.name}", type=int, default=default, help=f"default: {default}")
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", "build/train_gpt")))
    args = parser.parse_args()
    if not torch.cuda.is_available():
        os.environ["TRITON_INTERPRET"] = "1"  # before triton is imported
    sizes = Sizes(*(getattr(args, field.name) for field in dataclasses.fields(Sizes)))
    curves: dict[str, list[float]] = {}
    for name, mixorder in (("stock", False), ("mixorder", True)):
        curves[name], ms = train(sizes, mixorder)
        print(
            f"{name:<9} loss {curves[name][0]:.3f} -> {curves[name][-1]:.3f}, {ms:.2f} ms a step", flush=True
        )
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "loss.json").write_text(json.dumps(curves))
    if picture(args.out / "loss.png", curves["stock"], curves["mixorder"]):
        print(f"{args.out / 'loss.png'}")
    else:
        print("no picture: pip install matplotlib")
    share = apart(curves["mixorder"], curves["stock"])
    print(f"mean distance over the last quarter: {share:.1e} of the loss")
    return int(not share < APART)


if __name__ == "__main__":
    sys.exit(main())
