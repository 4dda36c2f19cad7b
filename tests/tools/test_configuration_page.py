"""The generated page is the one in the tree."""

from tools.configuration_page import PAGE, page


def test_the_configuration_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run `make docs`"
