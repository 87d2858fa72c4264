"""Programs as people write them, from models whose training spends time on norms, casts and gates.

Each maker gives a `Written`; it runs inside a device context. They were written down before anything was
timed, so they tell what the pass does where nobody had looked.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

BF16, FP32 = torch.bfloat16, torch.float32


@dataclass(frozen=True)
class Written:
    """A module and its inputs, of which gradients are taken.

    module: gives one tensor or several.
    inputs: by position, in the memory order of the model.
    unread: positions of inputs that a backward does not need.
    written: whether the gradient of each input of `unread` is a tensor of its own, not the result's.
    """

    module: nn.Module
    inputs: Sequence[Tensor]
    unread: Sequence[int] = ()
    written: bool = field(default=True)

    def backward_bytes(self, results: Sequence[Tensor]) -> int:
        """Bytes that a backward has to read and write: what it needs, the results' gradients, and its own."""
        parameters = sum(p.nbytes for p in self.module.parameters() if p.requires_grad)
        read = sum(x.nbytes for i, x in enumerate(self.inputs) if i not in self.unread)
        written = sum(x.nbytes for i, x in enumerate(self.inputs) if self.written or i not in self.unread)
        return 2 * parameters + read + written + sum(r.nbytes for r in results)


class Calls(nn.Module):
    """A function of itself and its inputs; parameters and modules by name."""

    def __init__(self, function: Callable[..., Any], **members: Any) -> None:
        super().__init__()
        self.function = function
        for name, member in members.items():
            is_parameter = isinstance(member, Tensor) and not isinstance(member, nn.Buffer)
            setattr(self, name, nn.Parameter(member) if is_parameter else member)

    def forward(self, *inputs: Tensor) -> Any:
        return self.function(self, *inputs)


def _given(*shape: int, dtype: torch.dtype = BF16, channels_last: bool = False) -> Tensor:
    x = torch.randn(shape, dtype=dtype)
    x = x.to(memory_format=torch.channels_last) if channels_last else x
    return x.requires_grad_()


def _norm(norm: nn.Module, then: Callable[..., Any] = lambda x: x, dtype: torch.dtype = BF16) -> Calls:
    """A norm in a dtype, and what is computed of its result and of further inputs."""
    return Calls(lambda self, x, *inputs: then(self.norm(x), *inputs), norm=norm.to(dtype))


def _by_hand_over_channels(self: Any, x: Tensor) -> Tensor:
    mean = x.mean(1, keepdim=True)
    variance = (x - mean).pow(2).mean(1, keepdim=True)
    x = (x - mean) / torch.sqrt(variance + 1e-6)
    return self.weight[:, None, None] * x + self.bias[:, None, None]


def _over_channels(channels_last: bool) -> Written:
    module = Calls(
        _by_hand_over_channels, weight=torch.ones(96, dtype=BF16), bias=torch.zeros(96, dtype=BF16)
    )
    return Written(module, [_given(64, 96, 56, 56, channels_last=channels_last)])


def glu() -> Written:
    def gated(self: Any, h: Tensor) -> Tensor:
        a, g = (h + self.bias).chunk(2, -1)
        return a * F.gelu(g)

    return Written(Calls(gated, bias=torch.zeros(8192, dtype=BF16)), [_given(8192, 8192)])


def gated_batch_norm() -> Written:
    module = _norm(nn.BatchNorm2d(240), lambda x, gate: F.hardswish(x) * gate)
    return Written(module, [_given(128, 240, 28, 28, channels_last=True), _given(128, 240, 1, 1)])


def sinks() -> Written:
    def attend(self: Any, x: Tensor) -> Tensor:
        sink = self.sink.view(1, -1, 1, 1).expand(x.shape[0], -1, x.shape[2], 1)
        return torch.cat([x, sink], -1).softmax(-1)[..., :-1]

    # The backward reads the probabilities, of which there are as many.
    return Written(Calls(attend, sink=torch.zeros(64, dtype=BF16)), [_given(2, 64, 512, 512)])


def over_channels() -> Written:
    return _over_channels(channels_last=False)


def over_channels_last() -> Written:
    return _over_channels(channels_last=True)


def normalized_channels() -> Written:
    module = Calls(
        lambda self, x: F.normalize(x, dim=1) * math.sqrt(96) * self.weight,
        weight=torch.ones(96, 1, 1).to(BF16),
    )
    return Written(module, [_given(64, 96, 56, 56)])


def batch_norm_1d() -> Written:
    return Written(_norm(nn.BatchNorm1d(512), F.silu), [_given(32, 512, 1000)])


def weight_norm() -> Written:
    # The same for each step's weight: `v` is the input here.
    return Written(
        Calls(lambda self, v: torch._weight_norm(v, self.g, 0), g=torch.ones(4096, 1).to(BF16)),
        [_given(4096, 4096)],
    )


def prelu_global_norm() -> Written:
    module = Calls(
        lambda self, x: self.norm(F.prelu(x, self.alpha)),
        norm=nn.GroupNorm(1, 512).to(BF16),
        alpha=torch.full((1,), 0.25).to(BF16),
    )
    return Written(module, [_given(16, 512, 3200)])


def instance_norm_1d() -> Written:
    return Written(
        _norm(nn.InstanceNorm1d(256, affine=True), lambda x: F.leaky_relu(x, 0.2)), [_given(32, 256, 4096)]
    )


def instance_norm_2d() -> Written:
    return Written(
        _norm(nn.InstanceNorm2d(64, affine=True), lambda x: F.leaky_relu(x, 0.01)), [_given(16, 64, 128, 128)]
    )


def group_norm_of_tokens() -> Written:
    return Written(_norm(nn.GroupNorm(32, 2048)), [_given(8192, 2048)])


def gated_group_norm_of_tokens() -> Written:
    module = _norm(nn.GroupNorm(32, 2048), lambda x, gate: x * F.silu(gate))
    return Written(module, [_given(8192, 2048), _given(8192, 2048)])


def weighted_heads() -> Written:
    def joined(self: Any, heads: Tensor) -> Tensor:
        return self.norm((heads * self.weight).transpose(1, 2).reshape(16, 1024, 1024))

    module = Calls(joined, norm=nn.LayerNorm(1024).to(BF16), weight=torch.ones(16, 1, 1).to(BF16))
    return Written(module, [_given(16, 16, 1024, 64)])


def embeddings() -> Written:
    module = _norm(nn.LayerNorm(768), dtype=FP32)
    module.function = lambda self, words, places, kind: self.norm(words + places + kind)
    return Written(
        module, [_given(64, 512, 768, dtype=FP32), _given(512, 768, dtype=FP32), _given(768, dtype=FP32)]
    )


def vicreg() -> Written:
    def centred(self: Any, z: Tensor) -> tuple[Tensor, Tensor]:
        z = z - z.mean(0)
        return F.relu(1 - (z.var(0) + 1e-4).sqrt()).mean(), z

    return Written(Calls(centred), [_given(4096, 8192, dtype=FP32)])


def modulated() -> Written:
    def block(self: Any, x: Tensor, y: Tensor, scale: Tensor, shift: Tensor, gate: Tensor) -> Tensor:
        y = F.layer_norm(y, (1152,)) * (1 + scale[:, None]) + shift[:, None]
        return x + gate[:, None] * y

    wide = [_given(64, 256, 1152) for _ in range(2)]
    return Written(Calls(block), [*wide, *(_given(64, 1152) for _ in range(3))], unread=[0], written=False)


def group_norm_alone() -> Written:
    return Written(_norm(nn.GroupNorm(32, 320), F.silu), [_given(8, 320, 64, 64, channels_last=True)])


def batch_norm_result() -> Written:
    return Written(_norm(nn.BatchNorm2d(256), F.relu), [_given(128, 256, 14, 14, channels_last=True)])


def batch_norm_result_7() -> Written:
    return Written(_norm(nn.BatchNorm2d(2048), F.relu), [_given(128, 2048, 7, 7, channels_last=True)])


def _frozen(norm: nn.Module) -> Written:
    norm.to(BF16).requires_grad_(False)
    return Written(norm, [_given(8192, 4096)])


def frozen_layer_norm() -> Written:
    return _frozen(nn.LayerNorm(4096))


def frozen_rms_norm() -> Written:
    return _frozen(nn.RMSNorm(4096))


def group_norm_by_hand() -> Written:
    def norm(self: Any, x: Tensor) -> Tensor:
        batch, height, width, channels = x.shape
        groups = x.reshape(batch, height * width, 32, channels // 32)
        mean = groups.mean((1, 3), keepdim=True)
        variance = groups.var((1, 3), keepdim=True, unbiased=False)
        return ((groups - mean) * (variance + 1e-5).rsqrt()).reshape(x.shape) * self.weight + self.bias

    module = Calls(norm, weight=torch.ones(320, dtype=BF16), bias=torch.zeros(320, dtype=BF16))
    return Written(module, [_given(8, 64, 64, 320)])


def swiglu() -> Written:
    def gated(self: Any, h: Tensor) -> Tensor:
        gate, up = (h + self.bias).split(5504, -1)
        return F.silu(gate) * up

    return Written(Calls(gated, bias=torch.zeros(11008, dtype=BF16)), [_given(8, 1024, 11008)])


def glu_of_channels() -> Written:
    # Conformer, wav2vec's and Demucs' decoders: the bias of a pointwise convolution in front.
    module = Calls(lambda self, h: F.glu(h + self.bias[:, None], dim=1), bias=torch.zeros(1024, dtype=BF16))
    return Written(module, [_given(32, 1024, 1000)])


def masked_sinks() -> Written:
    def attend(self: Any, x: Tensor) -> Tensor:
        sinks = self.sinks.reshape(1, -1, 1, 1).expand(x.shape[0], -1, x.shape[2], -1)
        later = torch.ones(x.shape[2:], dtype=torch.bool, device=x.device).triu(1)
        joined = torch.cat([x.masked_fill(later, torch.finfo(x.dtype).min), sinks], -1)
        joined = joined - joined.max(-1, keepdim=True).values
        return F.softmax(joined, -1, dtype=joined.dtype)[..., :-1]

    return Written(Calls(attend, sinks=torch.zeros(16, dtype=BF16)), [_given(2, 16, 1024, 1024)])


def joint_projection() -> Written:
    def split(self: Any, h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = (x.view(8, 1024, 16, 128) for x in (h + self.bias).chunk(3, -1))
        return self.q(q).transpose(1, 2), self.k(k).transpose(1, 2), v.transpose(1, 2)

    q, k = (nn.RMSNorm(128).to(BF16) for _ in range(2))
    return Written(Calls(split, bias=torch.zeros(6144, dtype=BF16), q=q, k=k), [_given(8, 1024, 6144)])


PROGRAMS: dict[str, Callable[[], Written]] = {
    make.__name__: make
    for make in (
        glu,
        gated_batch_norm,
        sinks,
        over_channels,
        over_channels_last,
        normalized_channels,
        batch_norm_1d,
        weight_norm,
        prelu_global_norm,
        instance_norm_1d,
        instance_norm_2d,
        group_norm_of_tokens,
        gated_group_norm_of_tokens,
        weighted_heads,
        embeddings,
        vicreg,
        modulated,
        group_norm_alone,
        batch_norm_result,
        batch_norm_result_7,
        frozen_layer_norm,
        frozen_rms_norm,
        group_norm_by_hand,
        swiglu,
        glu_of_channels,
        masked_sinks,
        joint_projection,
    )
}

# Thirty more: written down before any of them was compiled, and compiled in no test.


def _calls(function: Callable[..., Any], **shapes: Sequence[int]) -> Calls:
    """A function and parameters of these shapes."""
    return Calls(function, **{name: torch.randn(tuple(shape)).to(BF16) for name, shape in shapes.items()})


def dynamic_tanh() -> Written:
    def tanh(self: Any, x: Tensor) -> Tensor:
        return self.weight * torch.tanh(self.alpha * x) + self.bias

    return Written(_calls(tanh, alpha=[1], weight=[2048], bias=[2048]), [_given(16384, 2048)])


def evonorm() -> Written:
    def norm(self: Any, x: Tensor) -> Tensor:
        groups = x.reshape(32, 32, 8, 28, 28)
        deviation = (groups.var((2, 3, 4), keepdim=True, unbiased=False) + 1e-5).sqrt()
        x = x * torch.sigmoid(self.v * x) / deviation.expand_as(groups).reshape(x.shape)
        return x * self.weight + self.bias

    sizes = [1, 256, 1, 1]
    return Written(_calls(norm, v=sizes, weight=sizes, bias=sizes), [_given(32, 256, 28, 28)])


def filter_response_norm() -> Written:
    def norm(self: Any, x: Tensor) -> Tensor:
        x = x * torch.rsqrt(x.pow(2).mean((2, 3), keepdim=True) + 1e-6)
        return torch.maximum(self.weight * x + self.bias, self.threshold)

    sizes = [1, 128, 1, 1]
    return Written(_calls(norm, weight=sizes, bias=sizes, threshold=sizes), [_given(64, 128, 56, 56)])


def gated_pairs() -> Written:
    # AlphaFold's triangle updates.
    module = _norm(nn.LayerNorm(128), lambda x, gate: torch.sigmoid(gate) * x)
    return Written(module, [_given(1, 384, 384, 128), _given(1, 384, 384, 128)])


def shared_modulation() -> Written:
    # PixArt: a table, and the time step's embedding.
    def block(self: Any, x: Tensor, step: Tensor) -> Tensor:
        shift, scale = (self.table[None] + step).chunk(2, dim=1)
        return F.layer_norm(x, (1152,), eps=1e-6) * (1 + scale) + shift

    return Written(_calls(block, table=[2, 1152]), [_given(16, 1024, 1152), _given(16, 2, 1152)])


def rotated_heads() -> Written:
    # Flux's queries.
    def rotated(self: Any, q: Tensor) -> Tensor:
        q = self.norm(q.view(2, 2304, 24, 128).transpose(1, 2))
        pairs = q.float().reshape(2, 24, 2304, 64, 1, 2)
        product = self.table[..., 0] * pairs[..., 0] + self.table[..., 1] * pairs[..., 1]
        return product.reshape(q.shape).to(BF16)

    table = nn.Buffer(torch.randn(1, 1, 2304, 64, 2, 2))
    return Written(Calls(rotated, norm=nn.RMSNorm(128).to(BF16), table=table), [_given(2, 2304, 3072)])


def normalized_residual() -> Written:
    # nGPT.
    def step(self: Any, h: Tensor, change: Tensor) -> Tensor:
        h = h + self.rate * (F.normalize(change, dim=-1) - h)
        return F.normalize(h, dim=-1)

    return Written(_calls(step, rate=[2048]), [_given(8192, 2048), _given(8192, 2048)])


def hyper_connections() -> Written:
    def width(self: Any, streams: Tensor) -> tuple[Tensor, Tensor]:
        entering = (streams * self.into[:, None]).sum(1)
        return self.norm(entering), (self.mixing[:, :, None] * streams[:, None]).sum(2)

    module = _calls(width, into=[4], mixing=[4, 4])
    module.norm = nn.RMSNorm(1024).to(BF16)
    return Written(module, [_given(4096, 4, 1024)])


def gated_groups() -> Written:
    # Mamba 2's norm in eight groups.
    def norm(self: Any, y: Tensor, z: Tensor) -> Tensor:
        y = (y * F.silu(z)).float().reshape(8192, 8, 512)
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-5)
        return y.reshape(8192, 4096).to(BF16) * self.weight

    return Written(_calls(norm, weight=[4096]), [_given(8192, 4096), _given(8192, 4096)])


def gated_heads() -> Written:
    # Gated linear attention.
    module = _norm(nn.RMSNorm(512), lambda o, gate: o * F.silu(gate))
    return Written(module, [_given(8192, 4, 512), _given(8192, 4, 512)])


def reversible_instance_norm() -> Written:
    def norm(self: Any, x: Tensor) -> Tensor:
        mean = x.mean(1, keepdim=True).detach()
        deviation = torch.sqrt(x.var(1, keepdim=True, unbiased=False) + 1e-5).detach()
        return (x - mean) / deviation * self.weight + self.bias

    return Written(_calls(norm, weight=[321], bias=[321]), [_given(128, 336, 321)])


def ghost_batch_norm() -> Written:
    # TabNet.
    def norm(self: Any, x: Tensor) -> Tensor:
        parts = x.view(128, 128, 512)
        mean, variance = parts.mean(1, keepdim=True), parts.var(1, keepdim=True, unbiased=False)
        return ((parts - mean) * torch.rsqrt(variance + 1e-5)).view(x.shape) * self.weight + self.bias

    return Written(_calls(norm, weight=[512], bias=[512]), [_given(16384, 512)])


def deep_cross() -> Written:
    def cross(self: Any, x0: Tensor, h: Tensor, x: Tensor) -> Tensor:
        return x0 * (h + self.bias) + x

    wide = [_given(16384, 1024) for _ in range(3)]
    return Written(_calls(cross, bias=[1024]), wide, unread=[2], written=False)


def dice() -> Written:
    # The activation of deep interest networks.
    def activated(self: Any, x: Tensor) -> Tensor:
        p = torch.sigmoid(self.norm(x))
        return p * x + (1 - p) * self.alpha * x

    module = _calls(activated, alpha=[512])
    module.norm = nn.BatchNorm1d(512, affine=False).to(BF16)
    return Written(module, [_given(32768, 512)])


def spatial_gate() -> Written:
    # CBAM.
    module = _norm(nn.BatchNorm2d(256), lambda x, gate: F.relu(x) * torch.sigmoid(gate))
    return Written(
        module, [_given(64, 256, 28, 28, channels_last=True), _given(64, 1, 28, 28, channels_last=True)]
    )


def standardized_weight() -> Written:
    def scaled(self: Any, weight: Tensor) -> Tensor:
        mean = weight.mean((1, 2, 3), keepdim=True)
        variance = weight.var((1, 2, 3), keepdim=True, unbiased=False)
        return (weight - mean) * torch.rsqrt(variance * 4608 + 1e-4) * self.gain

    return Written(_calls(scaled, gain=[1024, 1, 1, 1]), [_given(1024, 512, 3, 3)])


def scaled_layer() -> Written:
    # CaiT, with stochastic depth.
    def add(self: Any, x: Tensor, y: Tensor) -> Tensor:
        return x + self.keep * (self.scale * y)

    module = _calls(add, scale=[768])
    module.keep = nn.Buffer(torch.ones(128, 1, 1, dtype=BF16))
    return Written(module, [_given(128, 196, 768), _given(128, 196, 768)], unread=[0], written=False)


def biased_log_softmax() -> Written:
    return Written(
        _calls(lambda self, x: F.log_softmax(x + self.bias, dim=-1), bias=[16384]), [_given(4096, 16384)]
    )


def balanced_router() -> Written:
    def route(self: Any, logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        p = (logits.float() + self.bias).softmax(-1)
        return p, p.mean(0).pow(2).sum() * 64, torch.logsumexp(logits.float(), -1).pow(2).mean()

    return Written(_calls(route, bias=[64]), [_given(131072, 64)])


def arc_face() -> Written:
    def centres(self: Any, weight: Tensor) -> Tensor:
        return F.normalize(weight, dim=1) * self.scale

    return Written(_calls(centres, scale=[1]), [_given(65536, 512)])


def point_features() -> Written:
    # PointNet++: channels, neighbours, centroids.
    module = _norm(nn.BatchNorm2d(128), lambda x: F.relu(x).amax(2))
    return Written(module, [_given(16, 128, 32, 512)])


def video_block() -> Written:
    module = _norm(nn.BatchNorm3d(64), lambda x, shortcut: F.relu(x + shortcut))
    return Written(module, [_given(8, 64, 16, 56, 56), _given(8, 64, 16, 56, 56)], unread=[1])


def separated_sources() -> Written:
    # Demucs.
    module = _norm(nn.GroupNorm(1, 768), lambda x: F.glu(x, dim=1))
    return Written(module, [_given(16, 768, 2000)])


def wave_gate() -> Written:
    def gate(self: Any, x: Tensor, condition: Tensor) -> Tensor:
        a, b = (x + condition).chunk(2, 1)
        return torch.tanh(a) * torch.sigmoid(b)

    return Written(Calls(gate), [_given(16, 512, 4000), _given(16, 512, 1)])


def film() -> Written:
    module = _norm(nn.BatchNorm2d(128, affine=False), lambda x, scale, shift: F.relu(scale * x + shift) + x)
    return Written(module, [_given(64, 128, 32, 32), _given(64, 128, 1, 1), _given(64, 128, 1, 1)])


def adaptive_instance_norm() -> Written:
    module = _norm(nn.InstanceNorm2d(256), lambda x, scale, shift: (1 + scale) * x + shift)
    return Written(module, [_given(16, 256, 64, 64), _given(16, 256, 1, 1), _given(16, 256, 1, 1)])


def spatially_adaptive_norm() -> Written:
    # SPADE.
    module = _norm(nn.BatchNorm2d(256, affine=False), lambda x, scale, shift: x * (1 + scale) + shift)
    return Written(module, [_given(8, 256, 64, 64) for _ in range(3)], unread=[2])


def demodulated_weight() -> Written:
    # StyleGAN 2.
    def modulated(self: Any, style: Tensor) -> Tensor:
        weight = self.weight[None] * style[:, None, :, None, None]
        return weight * torch.rsqrt(weight.float().pow(2).sum((2, 3, 4), keepdim=True) + 1e-8).to(BF16)

    return Written(_calls(modulated, weight=[256, 256, 3, 3]), [_given(32, 256)])


def graph_norm() -> Written:
    def norm(self: Any, x: Tensor) -> Tensor:
        x = x - self.share * x.mean(0, keepdim=True)
        return self.weight * x / (x.pow(2).mean(0, keepdim=True) + 1e-5).sqrt() + self.bias

    return Written(_calls(norm, share=[256], weight=[256], bias=[256]), [_given(65536, 256, dtype=FP32)])


def norm_of_each_head() -> Written:
    # Chameleon's queries: a scale and a shift for each head.
    def norm(self: Any, q: Tensor) -> Tensor:
        return F.layer_norm(q, (128,)) * self.weight + self.bias

    return Written(_calls(norm, weight=[32, 128], bias=[32, 128]), [_given(8192, 32, 128)])


UNSEEN: dict[str, Callable[[], Written]] = {
    make.__name__: make
    for make in (
        dynamic_tanh,
        evonorm,
        filter_response_norm,
        gated_pairs,
        shared_modulation,
        rotated_heads,
        normalized_residual,
        hyper_connections,
        gated_groups,
        gated_heads,
        reversible_instance_norm,
        ghost_batch_norm,
        deep_cross,
        dice,
        spatial_gate,
        standardized_weight,
        scaled_layer,
        biased_log_softmax,
        balanced_router,
        arc_face,
        point_features,
        video_block,
        separated_sources,
        wave_gate,
        film,
        adaptive_instance_norm,
        spatially_adaptive_norm,
        demodulated_weight,
        graph_norm,
        norm_of_each_head,
    )
}


# Norms written by hand: what people write where a library's norm does not fit.


def groups_of_images() -> Written:
    def norm(self: Any, x: Tensor) -> Tensor:
        groups = x.view(16, 32, -1)
        mean = groups.mean(-1, keepdim=True)
        variance = groups.var(-1, keepdim=True, unbiased=False)
        return ((groups - mean) * torch.rsqrt(variance + 1e-5)).view(x.shape) * self.weight + self.bias

    return Written(_calls(norm, weight=[1, 256, 1, 1], bias=[1, 256, 1, 1]), [_given(16, 256, 56, 56)])


def groups_in_fp32() -> Written:
    def norm(self: Any, x: Tensor) -> Tensor:
        groups = x.float().view(16, 32, -1)
        mean = groups.mean(-1, keepdim=True)
        variance = (groups - mean).pow(2).mean(-1, keepdim=True)
        normed = ((groups - mean) * torch.rsqrt(variance + 1e-5)).view(x.shape)
        return (normed * self.weight.float() + self.bias.float()).to(x.dtype)

    return Written(_calls(norm, weight=[1, 256, 1, 1], bias=[1, 256, 1, 1]), [_given(16, 256, 56, 56)])


def groups_and_silu() -> Written:
    def norm(self: Any, x: Tensor) -> Tensor:
        groups = x.reshape(16, 16, 16, 32, 32)
        mean, variance = groups.mean((2, 3, 4), keepdim=True), groups.var((2, 3, 4), keepdim=True)
        normed = ((groups - mean) / (variance + 1e-5).sqrt()).reshape(x.shape)
        return F.silu(normed * self.weight + self.bias)

    return Written(_calls(norm, weight=[1, 256, 1, 1], bias=[1, 256, 1, 1]), [_given(16, 256, 32, 32)])


def root_mean_square_of_groups() -> Written:
    def norm(self: Any, x: Tensor) -> Tensor:
        groups = x.reshape(16, 1024, 16, 32)
        normed = groups * torch.rsqrt(groups.pow(2).mean((1, 3), keepdim=True) + 1e-5)
        return normed.reshape(x.shape) * self.weight

    return Written(_calls(norm, weight=[512]), [_given(16, 32, 32, 512)])


def global_norm() -> Written:
    def norm(self: Any, x: Tensor) -> Tensor:
        flat = x.flatten(1)
        mean, variance = flat.mean(1, keepdim=True), flat.var(1, keepdim=True, unbiased=False)
        normed = ((flat - mean) / torch.sqrt(variance + 1e-8)).view_as(x)
        return normed * self.weight[:, None] + self.bias[:, None]

    return Written(_calls(norm, weight=[512], bias=[512]), [_given(16, 512, 3200)])


def evonorm_at_last() -> Written:
    def norm(self: Any, x: Tensor) -> Tensor:
        groups = x.reshape(32, 56, 56, 8, 16)
        deviation = (groups.var((1, 2, 4), keepdim=True, unbiased=False) + 1e-5).sqrt()
        normed = x * torch.sigmoid(self.v * x) / deviation.expand_as(groups).reshape(x.shape)
        return normed * self.weight + self.bias

    return Written(_calls(norm, v=[128], weight=[128], bias=[128]), [_given(32, 56, 56, 128)])


def gated_groups_of_tokens() -> Written:
    def norm(self: Any, x: Tensor, z: Tensor) -> Tensor:
        groups = x.view(8, 2048, 16, 64)
        mean = groups.mean((1, 3), keepdim=True)
        variance = groups.var((1, 3), keepdim=True, unbiased=False)
        normed = ((groups - mean) * torch.rsqrt(variance + 1e-5)).view(x.shape)
        return normed * self.weight * F.silu(z)

    return Written(_calls(norm, weight=[1024]), [_given(8, 2048, 1024), _given(8, 2048, 1024)])


def batch_norm_of_squares() -> Written:
    def norm(self: Any, x: Tensor) -> Tensor:
        centred = x - x.mean((0, 2, 3), keepdim=True)
        variance = centred.pow(2).mean((0, 2, 3), keepdim=True)
        return centred * torch.rsqrt(variance + 1e-5) * self.weight + self.bias

    return Written(_calls(norm, weight=[1, 256, 1, 1], bias=[1, 256, 1, 1]), [_given(64, 256, 28, 28)])


def norm_over_tokens() -> Written:
    def norm(self: Any, x: Tensor) -> Tensor:
        centred = x - x.mean(1, keepdim=True)
        deviation = torch.sqrt((centred * centred).mean(1, keepdim=True) + 1e-5)
        return centred / deviation * self.weight + self.bias

    return Written(_calls(norm, weight=[512], bias=[512]), [_given(32, 1024, 512)])


def whitened_columns() -> Written:
    def norm(self: Any, x: Tensor) -> Tensor:
        centred = x - x.mean(0)
        return centred / torch.sqrt(centred.pow(2).mean(0) + 1e-4)

    return Written(_calls(norm), [_given(16384, 2048, dtype=FP32)])


BY_HAND: dict[str, Callable[[], Written]] = {
    make.__name__: make
    for make in (
        groups_of_images,
        groups_in_fp32,
        groups_and_silu,
        root_mean_square_of_groups,
        global_norm,
        evonorm_at_last,
        gated_groups_of_tokens,
        batch_norm_of_squares,
        norm_over_tokens,
        whitened_columns,
    )
}


def _group_norm(samples: int, channels: int, size: int, last: bool = False) -> Callable[[], Written]:
    """A group norm of 32 groups and a SiLU, as in UNets of diffusion models; channels-last without that."""

    def make() -> Written:
        norm = nn.GroupNorm(32, channels)
        module = _norm(norm) if last else _norm(norm, F.silu)
        return Written(module, [_given(samples, channels, size, size, channels_last=last)])

    return make


def _normalized(samples: int, channels: int, size: int) -> Callable[[], Written]:
    def make() -> Written:
        module = Calls(lambda self, x: F.normalize(x, dim=1))
        return Written(module, [_given(samples, channels, size, size)])

    return make


# Norms whose reduction groups fit a program, or nearly so.
KEPT: dict[str, Callable[[], Written]] = {
    **{
        f"group_norm_{n}x{c}x{size}": _group_norm(n, c, size)
        for n, c, size in (
            *((64, 128, 32), (64, 256, 16), (64, 256, 8), (32, 512, 16)),
            *((16, 1280, 16), (8, 128, 64), (16, 640, 32), (16, 320, 64)),
        )
    },
    **{
        f"last_{n}x{c}x{size}": _group_norm(n, c, size, last=True)
        for n, c, size in ((64, 512, 16), (64, 1024, 16), (32, 1280, 16), (200, 64, 64))
    },
    **{f"normalize_{n}x{c}x{size}": _normalized(n, c, size) for n, c, size in ((2, 96, 256), (8, 512, 32))},
}
