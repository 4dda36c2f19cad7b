"""What a checkpoint keeps of an epoch's measurements."""

from __future__ import annotations

import torch

from esper_overwatch.trainer.measurements import COUNTS, Measurements


def test_counts_of_earlier_checkpoints_become_whole_numbers() -> None:
    saved = vars(Measurements.unmeasured(2, 3))
    earlier = saved | {name: saved[name].float() + 274 for name in COUNTS}
    found = vars(Measurements.of_state(earlier, torch.device("cpu")))
    assert found.keys() == saved.keys()
    for name in COUNTS:
        assert found[name].dtype == torch.int64
        assert (found[name] == 274).all()
