"""Small installed distributions with real entry points, for tests."""

from __future__ import annotations

from pathlib import Path

POINTWISE = '''
from torch import nn


class Pointwise(nn.Module):
    """x + gain * gelu(convolution(x))."""

    def __init__(self, channels, size):
        import torch

        super().__init__()
        self.point = nn.Conv2d(channels, channels, 1)
        self.gain = nn.Parameter(torch.zeros(1))

    def forward(self, x):
        return x + self.gain * nn.functional.gelu(self.point(x))


def pointwise(channels, size):
    return Pointwise(channels, size)


pointwise.identity_at_birth = True
'''


def install(site: Path, package: str, code: str, **points: dict[str, str]) -> Path:
    """Put a distribution of one module into a folder that is to be on sys.path.

    Args:
        points: group (with _ for the dot) -> name -> attribute of the module.
    """
    site.mkdir(parents=True, exist_ok=True)
    (site / f"{package}.py").write_text(code, encoding="utf-8")
    info = site / f"{package}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n", encoding="utf-8"
    )
    lines = []
    for group, names in points.items():
        lines.append(f"[{group.replace('_', '.')}]")
        lines += [f"{name} = {package}:{attribute}" for name, attribute in names.items()]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return site
