"""Verdicts of gates in words: what a seed waits for, and why it was not let through."""

from __future__ import annotations

from collections.abc import Collection

_WAITS_FOR = {
    "min_epochs": "epochs",
    "others_mature": "other seeds",
    "alpha_at_one": "alpha",
    "not_moving": "alpha",
    "contribution_measured": "a contribution",
}
"""What comes with time, by the check that fails until then."""
_FAILS_BY = {
    "dormant": "slot taken",
    "blueprint_present": "no such blueprint",
    "below_max_live": "too many seeds",
    "germinated": "not germinated",
    "training": "not training",
    "gradient_measured": "gradients not measured",
    "not_exploding": "exploding gradients",
    "healthy": "unhealthy gradients",
    "improved": "no gain",
    "gradient_ratio": "weak gradients",
    "blending": "not blending",
    "holding": "not holding",
    "contributes": "too little contribution",
    "refused": "refused",
}


def gate_verdict(failed: Collection[str]) -> tuple[str, str, str]:
    """Verdict, why, and the style of both; of a gate that let a seed through `ok` and nothing.

    Args:
        failed: checks of the gate that failed; one that this version does not know is shown by its name.
    """
    if not failed:
        return "ok", "", "ok"
    causes = [_FAILS_BY.get(name, name.replace("_", " ")) for name in failed if name not in _WAITS_FOR]
    if causes:
        return "fails", ", ".join(causes), "warning"
    return "waits", ", ".join(dict.fromkeys(_WAITS_FOR[name] for name in failed)), "info"
