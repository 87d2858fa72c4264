"""Train a small GPT on Python's standard library without mixorder and with it, and compare the losses.

The only line that is mixorder's is the one with `options=`. For each seed, weights, batches and their order
are the same in both runs, so that the curves differ by rounding alone; another seed has other weights and
batches. Prints the final losses (means over the last quarter of the steps), the difference of their means,
and the standard deviation between seeds. Writes `loss.json`, and `loss.png` where matplotlib is installed,
into --out. Without a GPU a much smaller model runs in the Triton interpreter, for a few steps.

    python examples/train_gpt.py                       # on a GPU: three seeds, about two minutes
    python examples/train_gpt.py --seeds 1 --steps 3000 --layers 12 --dim 768

Exit status: 0; 1 if the final losses of the two ways differ by more than 2%.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

APART = 0.02  # how far the means of the final losses may be from each other, as a share of the loss


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Of the model and its batches; `steps` of training, from each of `seeds`."""

    layers: int
    dim: int
    heads: int
    batch: int
    tokens: int
    steps: int
    seeds: int


GPU, INTERPRETED = Sizes(6, 384, 6, 64, 256, 1000, 3), Sizes(1, 32, 2, 4, 16, 8, 1)


# The corpus, byte by byte.

BYTES = 256


def corpus(most: int) -> Tensor:
    """Up to `most` bytes of the standard library's source, as integers."""
    files = sorted(Path(os.__file__).parent.glob("*.py"))
    text = b"".join(path.read_bytes() for path in files)
    return torch.frombuffer(bytearray(text[:most]), dtype=torch.uint8).long()


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
    """Bytes in, the loss of the next byte out."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.byte = nn.Embedding(BYTES, sizes.dim)
        self.place = nn.Embedding(sizes.tokens, sizes.dim)
        self.blocks = nn.Sequential(*(Block(sizes.dim, sizes.heads) for _ in range(sizes.layers)))
        self.norm, self.head = nn.LayerNorm(sizes.dim), nn.Linear(sizes.dim, BYTES, bias=False)

    def forward(self, text: Tensor, following: Tensor) -> Tensor:
        place = torch.arange(text.shape[1], device=text.device)
        x = self.norm(self.blocks(self.byte(text) + self.place(place)))
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


def train(sizes: Sizes, mixorder: bool) -> Iterator[tuple[list[float], float]]:
    """For each seed the loss of each step, and the median of the steps' milliseconds, the first ones left
    out. The model is compiled once, and gets other weights for the next seed."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch._dynamo.reset()
    model = GPT(sizes).to(device)
    step = compiled(model, mixorder)
    text = corpus(8_000_000).to(device)
    for seed in range(sizes.seeds):
        torch.manual_seed(seed)
        model.load_state_dict(GPT(sizes).state_dict())
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        rate = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-3, total_steps=sizes.steps, pct_start=0.1)
        draw = torch.Generator().manual_seed(seed)
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
            rate.step()
        yield losses, statistics.median(times[len(times) // 5 :])


def final(curve: Sequence[float]) -> float:
    """The mean over the last quarter."""
    return statistics.mean(curve[len(curve) - max(1, len(curve) // 4) :])


def spread(values: Sequence[float]) -> float:
    """The standard deviation, 0 of one value."""
    return statistics.stdev(values) if len(values) > 1 else 0.0


def smooth(curve: Sequence[float]) -> list[float]:
    """Means over the last 2% of the steps, to look at: a batch's own loss hides what differs."""
    width = max(1, len(curve) // 50)
    return [statistics.mean(curve[max(0, i + 1 - width) : i + 1]) for i in range(len(curve))]


def picture(path: Path, curves: dict[str, list[list[float]]]) -> bool:
    """All curves, and below them the difference of the ways' means with the standard deviation between seeds
    around zero; False without matplotlib."""
    try:
        import matplotlib
    except ImportError:
        return False
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (above, below) = pyplot.subplots(
        2, 1, sharex=True, figsize=(8, 5.5), height_ratios=(3, 2), layout="constrained"
    )
    colors = {"stock": ("Inductor", "tab:blue"), "mixorder": ("with mixorder", "tab:red")}
    means, spreads = {}, {}
    for name, (label, color) in colors.items():
        smoothed = [smooth(curve) for curve in curves[name]]
        for i, curve in enumerate(smoothed):
            above.plot(curve, color=color, linewidth=0.8, alpha=0.8, label="" if i else label)
        means[name] = [statistics.mean(seeds) for seeds in zip(*smoothed, strict=True)]
        spreads[name] = [spread(seeds) for seeds in zip(*smoothed, strict=True)]
    above.set_ylabel("loss")
    above.legend()
    band, steps = spreads["stock"], range(len(spreads["stock"]))
    label = "standard deviation between seeds"
    below.fill_between(steps, [-s for s in band], band, color="tab:blue", alpha=0.2, linewidth=0, label=label)
    difference = [a - b for a, b in zip(means["mixorder"], means["stock"], strict=True)]
    below.plot(difference, color="tab:red", linewidth=1, label="difference of the means")
    late = [abs(v) for v in (*difference, *band)][len(difference) // 10 :]
    below.set_ylim(-1.5 * max(late, default=1), 1.5 * max(late, default=1))
    below.set_ylabel("difference of loss")
    below.set_xlabel("step")
    below.legend()
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
    curves: dict[str, list[list[float]]] = {}
    for name, mixorder in (("stock", False), ("mixorder", True)):
        curves[name] = []
        for seed, (curve, ms) in enumerate(train(sizes, mixorder)):
            curves[name].append(curve)
            print(
                f"{name:<9} seed {seed} loss {curve[0]:.3f} -> {final(curve):.4f}, {ms:.2f} ms a step",
                flush=True,
            )
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "loss.json").write_text(json.dumps(curves))
    if picture(args.out / "loss.png", curves):
        print(f"{args.out / 'loss.png'}")
    else:
        print("no picture: pip install matplotlib")
    stock, ours = ([final(curve) for curve in curves[name]] for name in ("stock", "mixorder"))
    apart = abs(statistics.mean(ours) - statistics.mean(stock))
    print(f"final loss: {statistics.mean(stock):.4f} without mixorder, {statistics.mean(ours):.4f} with it")
    print(f"difference {apart:.1e}, standard deviation between seeds {spread(stock):.1e}")
    return int(not apart < APART * statistics.mean(stock))


if __name__ == "__main__":
    sys.exit(main())
