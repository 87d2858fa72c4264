"""Training loops as people write them by hand: blocks of known models, two deep, with published widths.

Each maker gives a module, which returns its loss, and its keyword arguments; it runs inside
`torch.device("meta")`. Nothing of a model package is used.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

LAYERS = 2
Made = tuple[nn.Module, dict[str, Any]]


def ids(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.long)


def heads_of(x: Tensor, heads: int) -> Tensor:
    """(batch, tokens, width) as (batch, heads, tokens, width of a head)."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


class RMSNorm(nn.Module):
    """As written by hand: float32 inside, the weight in the input's dtype."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        h = x.float()
        h = h * torch.rsqrt(h.square().mean(-1, keepdim=True) + 1e-6)
        return self.weight * h.to(x.dtype)


def angles(tokens: int, width: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Cosines and sines of the rotary embedding, (tokens, width / 2) float32."""
    half = width // 2
    place = torch.arange(tokens, device=device, dtype=torch.float32)
    angle = place[:, None] * 10000 ** (-torch.arange(half, device=device, dtype=torch.float32) / half)
    return angle.cos(), angle.sin()


def rotated(x: Tensor, table: tuple[Tensor, Tensor] | None = None) -> Tensor:
    """Rotary embedding of (batch, heads, tokens, width), on halves; computes the table if none is given."""
    cos, sin = (factor.to(x.dtype) for factor in table or angles(x.shape[-2], x.shape[-1], x.device))
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


class Attention(nn.Module):
    """Of `heads`. `norm`: of queries and keys, per head. `rotary`: whether they are rotated."""

    def __init__(
        self,
        width: int,
        heads: int,
        causal: bool = True,
        norm: Callable[[int], nn.Module] | None = None,
        rotary: bool = False,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.heads, self.causal, self.rotary = heads, causal, rotary
        self.qkv, self.out = nn.Linear(width, 3 * width, bias), nn.Linear(width, width, bias)
        self.q_norm = norm(width // heads) if norm else nn.Identity()
        self.k_norm = norm(width // heads) if norm else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (heads_of(part, self.heads) for part in self.qkv(x).chunk(3, dim=-1))
        q, k = self.q_norm(q), self.k_norm(k)
        if self.rotary:
            q, k = rotated(q), rotated(k)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.out(y.transpose(1, 2).flatten(2))


class CrossAttention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.kv, self.out = (
            nn.Linear(width, width),
            nn.Linear(width, 2 * width),
            nn.Linear(width, width),
        )

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        k, v = (heads_of(part, self.heads) for part in self.kv(memory).chunk(2, dim=-1))
        y = F.scaled_dot_product_attention(heads_of(self.q(x), self.heads), k, v)
        return self.out(y.transpose(1, 2).flatten(2))


class LatentAttention(nn.Module):
    """DeepSeek's: keys and values from a narrow normalised latent, a rotated part beside them."""

    def __init__(self, width: int, heads: int, latent: int = 512, query: int = 1536) -> None:
        super().__init__()
        self.heads, self.latent = heads, latent
        self.q_down, self.q_norm = nn.Linear(width, query, False), RMSNorm(query)
        self.q_up = nn.Linear(query, heads * 192, False)
        self.kv_down, self.kv_norm = nn.Linear(width, latent + 64, False), RMSNorm(latent)
        self.kv_up, self.out = nn.Linear(latent, heads * 256, False), nn.Linear(heads * 128, width, False)

    def forward(self, x: Tensor) -> Tensor:
        q = heads_of(self.q_up(self.q_norm(self.q_down(x))), self.heads)
        plain, rotary = q.split((128, 64), dim=-1)
        q = torch.cat((plain, rotated(rotary)), dim=-1)
        latent, shared = self.kv_down(x).split((self.latent, 64), dim=-1)
        k, v = heads_of(self.kv_up(self.kv_norm(latent)), self.heads).split((128, 128), dim=-1)
        shared = rotated(shared[:, None]).expand(-1, self.heads, -1, -1)
        y = F.scaled_dot_product_attention(
            q, torch.cat((k, shared), dim=-1), F.pad(v, (0, 64)), is_causal=True
        )
        return self.out(y[..., :128].transpose(1, 2).flatten(2))


class Gelu(nn.Sequential):
    def __init__(self, width: int, bias: bool = True) -> None:
        super().__init__(nn.Linear(width, 4 * width, bias), nn.GELU(), nn.Linear(4 * width, width, bias))


class SwiGlu(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 2 * inner, False), nn.Linear(inner, width, False)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.up(x).chunk(2, dim=-1)
        return self.down(F.silu(gate) * up)


class Experts(nn.Module):
    """Every expert takes a quarter of the tokens: those that its router gives the most weight."""

    def __init__(self, width: int, inner: int, experts: int = 8) -> None:
        super().__init__()
        self.router = nn.Linear(width, experts, False)
        self.up = nn.Parameter(torch.empty(experts, width, 2 * inner))
        self.down = nn.Parameter(torch.empty(experts, inner, width))

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(0, 1)
        share = self.router(flat).float().softmax(-1)
        weight, chosen = share.t().topk(flat.shape[0] // 4, dim=-1)
        gate, up = torch.bmm(flat[chosen], self.up.to(flat.dtype)).chunk(2, dim=-1)
        y = torch.bmm(F.silu(gate) * up, self.down.to(flat.dtype)) * weight[..., None].to(flat.dtype)
        return (
            torch.zeros_like(flat).index_add(0, chosen.flatten(), y.flatten(0, 1).to(flat.dtype)).view_as(x)
        )


class Block(nn.Module):
    """Pre-norm."""

    def __init__(self, width: int, mix: nn.Module, mlp: nn.Module, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.norm1, self.mix, self.norm2, self.mlp = norm(width), mix, norm(width), mlp

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.mix(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Decoder(nn.Module):
    """A language model: its loss for `tokens`. `places`: learned positions, none if 0."""

    def __init__(
        self,
        words: int,
        width: int,
        norm: Callable[[int], nn.Module],
        block: Callable[[], nn.Module],
        places: int = 0,
    ) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.places = nn.Embedding(places, width) if places else None
        self.blocks = nn.ModuleList(block() for _ in range(LAYERS))
        self.norm, self.head = norm(width), nn.Linear(width, words, False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens)
        if self.places is not None:
            x = x + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x)).float()
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


def nanogpt() -> Made:
    """GPT-2's widths, 32 x 1024 tokens, LayerNorm without a bias."""

    def norm(width: int) -> nn.Module:
        return nn.LayerNorm(width, bias=False)

    def block() -> nn.Module:
        return Block(768, Attention(768, 12, bias=False), Gelu(768, False), norm)

    return Decoder(50304, 768, norm, block, places=1024), {"tokens": ids(32, 1024)}


def qk_norm() -> Made:
    """RMSNorm on every head's queries and keys, rotary embeddings, SwiGLU."""

    def block() -> nn.Module:
        mix = Attention(2048, 16, norm=RMSNorm, rotary=True, bias=False)
        return Block(2048, mix, SwiGlu(2048, 5632), RMSNorm)

    return Decoder(32000, 2048, RMSNorm, block), {"tokens": ids(8, 2048)}


def qk_layer_norm() -> Made:
    """nn.LayerNorm on every head's queries and keys, as in ViT-22B."""

    def block() -> nn.Module:
        return Block(1536, Attention(1536, 12, norm=nn.LayerNorm), Gelu(1536), nn.LayerNorm)

    return Decoder(32000, 1536, nn.LayerNorm, block, places=2048), {"tokens": ids(8, 2048)}


def torch_rms() -> Made:
    """nn.RMSNorm, rotary embeddings, SwiGLU: a Llama as in torchtitan."""

    def block() -> nn.Module:
        return Block(4096, Attention(4096, 32, rotary=True, bias=False), SwiGlu(4096, 11008), nn.RMSNorm)

    return Decoder(32000, 4096, nn.RMSNorm, block), {"tokens": ids(4, 2048)}


def mla() -> Made:
    """DeepSeek-V2's attention."""

    def block() -> nn.Module:
        return Block(5120, LatentAttention(5120, 32), SwiGlu(5120, 12288), RMSNorm)

    return Decoder(32000, 5120, RMSNorm, block), {"tokens": ids(4, 2048)}


def moe() -> Made:
    """Experts that choose their tokens."""

    def block() -> nn.Module:
        return Block(1024, Attention(1024, 16, rotary=True, bias=False), Experts(1024, 2816), RMSNorm)

    return Decoder(32000, 1024, RMSNorm, block), {"tokens": ids(8, 2048)}


class Conditioned(nn.Module):
    """DiT's block: LayerNorm without parameters; scale, shift and gate from a condition per sample."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width, elementwise_affine=False)
        self.norm2 = nn.LayerNorm(width, elementwise_affine=False)
        self.mix, self.mlp = Attention(width, heads, causal=False), Gelu(width)
        self.condition = nn.Sequential(nn.SiLU(), nn.Linear(width, 6 * width))

    def forward(self, x: Tensor, c: Tensor) -> Tensor:
        shift1, scale1, gate1, shift2, scale2, gate2 = self.condition(c)[:, None].chunk(6, dim=-1)
        x = x + gate1 * self.mix(self.norm1(x) * (1 + scale1) + shift1)
        return x + gate2 * self.mlp(self.norm2(x) * (1 + scale2) + shift2)


class Dit(nn.Module):
    def __init__(self, width: int, heads: int, tokens: int) -> None:
        super().__init__()
        self.patch, self.time = nn.Conv2d(4, width, 2, 2), nn.Linear(256, width)
        self.place = nn.Parameter(torch.zeros(1, tokens, width))
        self.blocks = nn.ModuleList(Conditioned(width, heads) for _ in range(LAYERS))
        self.norm, self.out = nn.LayerNorm(width, elementwise_affine=False), nn.Linear(width, 16)

    def forward(self, latents: Tensor, time: Tensor, noise: Tensor) -> Tensor:
        x, c = self.patch(latents).flatten(2).transpose(1, 2) + self.place, self.time(time)
        for block in self.blocks:
            x = block(x, c)
        return F.mse_loss(self.out(self.norm(x)).float(), noise.float())


def dit() -> Made:
    """DiT-XL/2 on latents of 32 x 32."""
    latents, time, noise = torch.zeros(128, 4, 32, 32), torch.zeros(128, 256), torch.zeros(128, 256, 16)
    return Dit(1152, 16, 256), {"latents": latents, "time": time, "noise": noise}


class Residual(nn.Module):
    """A UNet's block: GroupNorm, SiLU and a convolution, twice, and the time's embedding between."""

    def __init__(self, inner: int, outer: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(32, inner), nn.Conv2d(inner, outer, 3, padding=1)
        self.norm2, self.conv2 = nn.GroupNorm(32, outer), nn.Conv2d(outer, outer, 3, padding=1)
        self.time = nn.Linear(512, outer)
        self.skip = nn.Conv2d(inner, outer, 1) if inner != outer else nn.Identity()

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        h = self.conv1(F.silu(self.norm1(x))) + self.time(F.silu(time))[:, :, None, None]
        return self.skip(x) + self.conv2(F.silu(self.norm2(h)))


class Spatial(nn.Module):
    """Attention over places, between a GroupNorm and the residual stream."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.mix = nn.GroupNorm(32, width), Attention(width, width // 64, causal=False)
        self.cross, self.cross_norm = CrossAttention(width, width // 64), nn.LayerNorm(width)

    def forward(self, x: Tensor, words: Tensor) -> Tensor:
        h = self.mix(self.norm(x).flatten(2).transpose(1, 2))
        h = h + self.cross(self.cross_norm(h), words)
        return x + h.transpose(1, 2).reshape(x.shape)


class UNet(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(4, width, 3, padding=1), nn.Conv2d(width, 4, 3, padding=1)
        self.down1, self.halve = Residual(width, width), nn.Conv2d(width, 2 * width, 3, 2, 1)
        self.down2, self.attention = Residual(2 * width, 2 * width), Spatial(2 * width)
        self.words = nn.Linear(768, 2 * width)
        self.up2, self.up1 = Residual(2 * width, width), Residual(2 * width, width)
        self.norm = nn.GroupNorm(32, width)

    def forward(self, latents: Tensor, time: Tensor, words: Tensor, noise: Tensor) -> Tensor:
        a = self.down1(self.first(latents), time)
        b = self.attention(self.down2(self.halve(a), time), self.words(words))
        up = F.interpolate(self.up2(b, time), scale_factor=2)
        x = self.up1(torch.cat((up, a), dim=1), time)
        return F.mse_loss(self.last(F.silu(self.norm(x))).float(), noise.float())


def unet() -> Made:
    """The first two levels of Stable Diffusion's."""
    latents, time = torch.zeros(32, 4, 64, 64), torch.zeros(32, 512)
    named = {"latents": latents, "time": time, "words": torch.zeros(32, 77, 768)}
    return UNet(320), named | {"noise": torch.zeros(32, 4, 64, 64)}


def volume(inner: int, outer: int, stride: int = 1) -> nn.Sequential:
    """A convolution of volumes, an instance norm and an activation in place."""
    conv = nn.Conv3d(inner, outer, 3, stride, 1)
    return nn.Sequential(conv, nn.InstanceNorm3d(outer, affine=True), nn.LeakyReLU(0.01, inplace=True))


class Volumes(nn.Module):
    """A U-Net of volumes, two convolutions a level."""

    def __init__(self, widths: tuple[int, ...]) -> None:
        super().__init__()
        pairs = list(zip(widths, widths[1:], strict=False))
        self.first = nn.Sequential(volume(1, widths[0]), volume(widths[0], widths[0]))
        self.down = nn.ModuleList(nn.Sequential(volume(a, b, 2), volume(b, b)) for a, b in pairs)
        self.widen = nn.ModuleList(nn.ConvTranspose3d(b, a, 2, 2) for a, b in pairs)
        self.up = nn.ModuleList(nn.Sequential(volume(2 * a, a), volume(a, a)) for a, _ in pairs)
        self.last = nn.Conv3d(widths[0], 3, 1)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        skips = [self.first(x)]
        for down in self.down:
            skips.append(down(skips[-1]))
        x = skips.pop()
        for widen, up in zip(reversed(self.widen), reversed(self.up), strict=True):
            x = up(torch.cat((widen(x), skips.pop()), dim=1))
        return F.cross_entropy(self.last(x).float(), labels)


def nnunet() -> Made:
    """As nnU-Net plans 3d_fullres: instance norms, LeakyReLU, 32 to 320 channels."""
    inputs = {"x": torch.zeros(2, 1, 96, 128, 128), "labels": ids(2, 96, 128, 128)}
    return Volumes((32, 64, 128, 256, 320)), inputs


class Listener(nn.Module):
    """Whisper's shape: a convolutional stem, an encoder, and a decoder with cross-attention."""

    def __init__(self, width: int, heads: int, words: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv1d(80, width, 3, padding=1), nn.Conv1d(width, width, 3, 2, 1)
        self.encoder = nn.ModuleList(
            Block(width, Attention(width, heads, causal=False), Gelu(width), nn.LayerNorm)
            for _ in range(LAYERS)
        )
        self.norm = nn.LayerNorm(width)
        self.cross = nn.ModuleList(CrossAttention(width, heads) for _ in range(LAYERS))
        self.cross_norm = nn.ModuleList(nn.LayerNorm(width) for _ in range(LAYERS))
        self.decoder = nn.ModuleList(
            Block(width, Attention(width, heads), Gelu(width), nn.LayerNorm) for _ in range(LAYERS)
        )
        self.words, self.last = nn.Embedding(words, width), nn.LayerNorm(width)

    def forward(self, sound: Tensor, tokens: Tensor) -> Tensor:
        x = F.gelu(self.conv2(F.gelu(self.conv1(sound)))).transpose(1, 2)
        for block in self.encoder:
            x = block(x)
        memory, y = self.norm(x), self.words(tokens)
        for block, cross, norm in zip(self.decoder, self.cross, self.cross_norm, strict=True):
            y = block(y + cross(norm(y), memory))
        logits = (self.last(y) @ self.words.weight.t()).float()
        return F.cross_entropy(logits.flatten(0, 1), tokens.flatten())


def whisper() -> Made:
    """Whisper small, 16 x 30 s."""
    return Listener(768, 12, 51865), {"sound": torch.zeros(16, 80, 3000), "tokens": ids(16, 448)}


def tiny() -> Made:
    """Small enough for tests: one width for every recipe."""

    def block() -> nn.Module:
        return Block(128, Attention(128, 2), Gelu(128), nn.LayerNorm)

    return Decoder(512, 128, nn.LayerNorm, block, places=256), {"tokens": ids(8, 256)}


LOOPS: dict[str, Callable[[], Made]] = {
    f.__name__: f
    for f in (nanogpt, dit, unet, nnunet, whisper, moe, qk_norm, qk_layer_norm, mla, torch_rms, tiny)
}
