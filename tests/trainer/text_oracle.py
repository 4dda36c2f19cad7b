"""The text host of one env as ordinary modules: what the stacked transformer is held against.

Activations are [B, T, C] here. Shares no code with the engine but the names of parameters.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from esper_overwatch.trainer.config.schema import Config
from esper_overwatch.trainer.data.text import Text
from tests.trainer.oracle import Env


class Attention(nn.MultiheadAttention):
    """torch.nn's, causal, and of one argument; a position sees `window` of them, itself included."""

    def __init__(self, channels: int, heads: int, window: int = 1000) -> None:
        super().__init__(channels, heads, bias=False, batch_first=True)
        self.window = window

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        square = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool)
        unseen = square.triu(1) | square.tril(-self.window)
        return super().forward(x, x, x, attn_mask=unseen, need_weights=False)[0]


def normed(x: Tensor) -> Tensor:
    """Layer norm without parameters, from its definition."""
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()


def mlp(channels: int, hidden: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(channels, hidden, bias=False),
        nn.GELU(approximate="tanh"),
        nn.Linear(hidden, channels, bias=False),
    )


class Norm(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm, self.gain = nn.LayerNorm(channels), nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        return torch.lerp(x, self.norm(x), self.gain)


class Lora(nn.Module):
    def __init__(self, channels: int, rank: int) -> None:
        super().__init__()
        self.down = nn.Linear(channels, rank, bias=False)
        self.up = nn.Linear(rank, channels, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.up(self.down(x))


class Behind(nn.Module):
    """x + layer(norm(x))."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layer(normed(x))


class AsMap(nn.Module):
    """A module of maps [B, C, T, 1], for [B, T, C]."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x.transpose(1, 2).unsqueeze(3)).squeeze(3).transpose(1, 2)


def make_text_seed(name: str, channels: int, context: int) -> nn.Module:
    """A newborn seed of a built-in blueprint."""
    kind, _, choice = name.partition(":")
    size = int(choice.partition("=")[2] or 0)
    width = size if kind == "attention" and size else 16
    heads = channels // width if channels % width == 0 else 1
    return {
        "norm": lambda: Norm(channels),
        "lora": lambda: Lora(channels, size or max(2, channels // 8)),
        "lora_large": lambda: Lora(channels, size or max(2, channels // 2)),
        "attention": lambda: Behind(Attention(channels, heads)),
        "flex_attention": lambda: Behind(Attention(channels, heads, size or max(1, context // 4))),
        "mlp_small": lambda: Behind(mlp(channels, (size or 2) * channels)),
        "mlp": lambda: Behind(mlp(channels, (size or 4) * channels)),
        "noop": nn.Identity,
    }[kind]()


OTHERS: dict[str, type[nn.Module]] = {}
"""Third parties' modules by the name of their blueprint; made with (channels, size)."""
NAMES = {
    "token.weight": "embed.token",
    "position.weight": "embed.position",
    "head.weight": "head.weight",
    "in_proj_weight": "in",
    "out_proj.weight": "out",
    "0.weight": "in",
    "2.weight": "out",
    "down.weight": "down",
    "up.weight": "up",
}
"""What the engine calls the end of a parameter's name, where it is another."""


class TextEnv(Env):
    """A transformer, its seeds and their optimizer."""

    def __init__(self, config: Config, data: Text) -> None:
        nn.Module.__init__(self)
        host, c = config.host, config.host.width
        self.token = nn.Embedding(data.classes, c)
        self.position = nn.Embedding(data.context, c)
        depth = range(host.depth)
        self.attention = nn.ModuleList(Attention(c, host.heads) for _ in depth if host.heads)
        self.mlp = nn.ModuleList(mlp(c, host.mlp) for _ in depth if host.mlp)
        self.head = nn.Linear(c, data.classes, bias=False)
        if host.tied_head:
            self.head.weight = self.token.weight
        self.seed, self.gate = nn.ModuleDict(), nn.ModuleDict()
        self.grafting = {}
        self._config, self._data = config, data
        self.dropout: Callable[[Tensor, int], Tensor] = lambda h, _place: h
        """What training makes of the embeddings (place 0) and of what each layer adds (2 i + 1, 2 i + 2)."""

    def forward(self, x: Tensor, without: int | None = None) -> Tensor:
        """Logits [B*T, V] from tokens [B, T]; with slot `without` as if its alpha were 0."""
        drop = self.dropout if torch.is_grad_enabled() else lambda h, _place: h
        h = drop(self.token(x) + self.position(torch.arange(x.shape[1])), 0)
        for i in range(self._config.host.depth):
            for place, layers in enumerate((self.attention, self.mlp), 2 * i + 1):
                if len(layers):
                    h = h + drop(layers[i](normed(h)), place)
            h = self._behind(i, h, () if without is None else (without,))
        return self.head(normed(h)).flatten(0, 1)

    def _opening(self, slot: str, h: Tensor, frozen: bool) -> Tensor:
        return torch.sigmoid(self._call(self.gate[slot], h, frozen))

    @torch.no_grad()
    def scores(self, part: Tensor, without: int | None = None) -> tuple[float, float]:
        """Loss and accuracy over the windows of tokens [M] that stand side by side."""
        width = self._data.context
        starts = range(0, len(part) - width, width)
        x = torch.stack([part[s : s + width] for s in starts]).long()
        labels = torch.cat([part[s + 1 : s + width + 1] for s in starts]).long()
        logits = self(x, without)
        accuracy = (logits.argmax(1) == labels).double().mean()
        return float(F.cross_entropy(logits, labels)), float(accuracy)

    def channels(self, slot: int) -> int:
        return self._config.host.width

    def newborn(self, name: str, channels: int) -> nn.Module:  # type: ignore[override]
        if name in OTHERS:
            return AsMap(OTHERS[name](channels, (self._data.context, 1)))  # type: ignore[call-arg]
        return make_text_seed(name, channels, self._data.context)

    def engine_name(self, name: str, slots: list[str], blueprints: dict[str, str]) -> str:
        part, _, rest = name.partition(".")
        if part in ("token", "position", "head"):
            return NAMES[name]
        place, _, tail = rest.partition(".")
        if part in ("attention", "mlp"):
            return f"block{place}.{part}.{NAMES[tail]}"
        if part == "gate":
            return f"{slots[int(place)]}.gate.{tail}"
        tail = tail.removeprefix("layer.").removeprefix("inner.")
        return ".".join([slots[int(place)], blueprints[place], NAMES.get(tail, tail)])
