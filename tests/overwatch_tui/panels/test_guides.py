"""What guides and hints send an operator to is there: views under their digits, keys in the table."""

from __future__ import annotations

import re

from esper_overwatch.overwatch_tui.keys import KEYS
from esper_overwatch.overwatch_tui.panels import PANELS
from esper_overwatch.overwatch_tui.panels.field_help import FIELD_HELP
from esper_overwatch.protocol.messages.anomaly_guide import ANOMALY_GUIDES
from esper_overwatch.protocol.messages.thresholds import THRESHOLDS

TEXTS = str([ANOMALY_GUIDES, THRESHOLDS, FIELD_HELP])


def test_guides_name_views_that_are_there() -> None:
    named = set(re.findall(r"view ([A-Z]\w+) \((\d)\)", TEXTS))
    assert named
    for kind in (False, True):
        assert named <= {(view.title, view.key) for view in PANELS.of(is_published=kind).views}
    digits = set(re.findall(r"view (\d)|\((\d)\)", TEXTS))
    assert {digit for both in digits for digit in both if digit} <= {view.key for view in PANELS.views}


def test_guides_name_keys_that_are_there() -> None:
    named = set(re.findall(r"key ([A-Z])\b|\(([A-Z])\)", TEXTS))
    assert named
    assert {key for both in named for key in both if key} <= {
        name for key in KEYS for name in key.keys.split(",")
    }
