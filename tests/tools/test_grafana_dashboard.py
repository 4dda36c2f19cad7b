"""The dashboard is what its rows say, and Grafana can place it."""

import json

from tools.grafana_dashboard import COLUMNS, PAGE, page


def test_the_dashboard_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run `make docs`"


def test_panels_neither_overlap_nor_share_a_number() -> None:
    panels = json.loads(page())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (x, y)
        for panel in panels
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < COLUMNS
