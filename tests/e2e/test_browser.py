"""`esper-tui --serve` in a real browser: what it receives, and what its keys and mouse do."""

from __future__ import annotations

import csv
import http.server
import json
import re
import shutil
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pyte
import pytest

from .conftest import TERMINAL, House

CHROMIUM = next((path for name in ("chromium", "chromium-browser") if (path := shutil.which(name))), None)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="needs Debian's package chromium"),
]
COLUMNS, LINES = 240, 100
"""Larger than any window of these tests."""


@contextmanager
def served(house: House, *arguments: str, folder: Path | None = None) -> Iterator[str]:
    """`esper-tui --serve` on a free port, started in a folder; its printed address."""
    command = (*TERMINAL, *arguments, "--serve", "--port", "0")
    process = house.open(*command, stdout=subprocess.PIPE, cwd=folder)
    try:
        assert process.stdout is not None
        found = re.search(r"http://127\.0\.0\.1:\d+/#token=\S+", process.stdout.readline())
        assert found is not None
        yield found[0]
    finally:
        process.terminate()
        process.wait(300)


class Page:
    """A page of Chromium, and the terminal's text as its web socket brought it."""

    def __init__(self, page: object) -> None:
        self.page = page
        self.screen = pyte.Screen(COLUMNS, LINES)
        self._stream = pyte.ByteStream(self.screen)
        self._texts: list[str] = []
        """The screen after each piece that came: some words stand there for seconds only."""
        self.size = (0, 0)
        """Columns and lines, as the page has told the server."""
        self.foreign: list[str] = []
        """Requests that left this machine."""
        page.on("websocket", self._follow)  # type: ignore[attr-defined]
        page.on("requestfinished", self._note)  # type: ignore[attr-defined]

    def another(self) -> Page:
        """Another page of the same browser, with the same cookies."""
        return Page(self.page.context.new_page())  # type: ignore[attr-defined]

    def _follow(self, socket: object) -> None:
        size = parse_qs(urlsplit(socket.url).query)  # type: ignore[attr-defined]
        self.size = (int(size["width"][0]), int(size["height"][0]))
        socket.on("framereceived", self._feed)  # type: ignore[attr-defined]
        socket.on("framesent", self._note_size)  # type: ignore[attr-defined]

    def _feed(self, payload: str | bytes) -> None:
        if isinstance(payload, bytes):
            self._stream.feed(payload)
            self._texts.append(self.text)

    def _note_size(self, payload: str | bytes) -> None:
        match json.loads(payload):
            case ["resize", {"width": width, "height": height}]:
                self.size = (width, height)

    def _note(self, request: object) -> None:
        if not request.url.startswith(("http://127.0.0.1:", "ws://127.0.0.1:", "data:")):  # type: ignore[attr-defined]
            self.foreign.append(request.url)  # type: ignore[attr-defined]

    @property
    def text(self) -> str:
        return "\n".join(self.screen.display)

    def has_shown(self, words: str) -> bool:
        """Whether they have stood on the screen at any time."""
        return any(words in text for text in self._texts)

    def wait_for(self, what: str | Callable[[str], bool]) -> str:
        for _ in range(3000):
            if what in self.text if isinstance(what, str) else what(self.text):
                return self.text
            self.page.wait_for_timeout(100)  # type: ignore[attr-defined]
        raise AssertionError(f"the page does not show {what}:\n{self.text}")


@contextmanager
def browser() -> Iterator[Page]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=CHROMIUM,
            args=["--no-sandbox", "--disable-dev-shm-usage"],  # /dev/shm of a container can be small
            timeout=300_000,
        )
        context = chromium.new_context(viewport={"width": 1280, "height": 800})
        context.set_default_timeout(300_000)
        yield Page(context.new_page())
        chromium.close()


def test_a_browser_shows_and_steers_a_live_run(house: House) -> None:
    house.spawn("seen")
    with served(house, "seen") as address, browser() as page:
        page.page.goto(address)  # type: ignore[attr-defined]
        page.wait_for("LIVE")
        assert "token" not in page.page.url, "the token does not stay in the address"  # type: ignore[attr-defined]
        page.wait_for(lambda text: " 03 " in text)
        page.page.keyboard.press("5")  # type: ignore[attr-defined]
        page.wait_for("[5 Machine]")

        for _ in range(60):  # a name before it that gets a count moves it away from the click
            _click(page, "4 Seeds")
            page.page.wait_for_timeout(1000)  # type: ignore[attr-defined]
            if "[4 Seeds]" in page.text:
                break
        page.wait_for("[4 Seeds]")

        page.page.keyboard.press("Shift+C")  # type: ignore[attr-defined]
        page.wait_for("y/N")
        page.page.keyboard.press("y")  # type: ignore[attr-defined]
        page.wait_for("DONE")
        assert house.journal("seen", "checkpoint.saved")
        page.page.keyboard.press("q")  # type: ignore[attr-defined]
        page.page.get_by_text("Session ended").wait_for()  # type: ignore[attr-defined]
        assert page.foreign == []
    assert house.ask("status", "seen")["state"] == "TRAINING"


def _click(page: Page, words: str) -> None:
    """Click on words that the terminal shows, if it does."""
    terminal = page.page.locator("#terminal").bounding_box()  # type: ignore[attr-defined]
    width, height = page.size
    for line, text in enumerate(page.screen.display):
        if words in text:
            page.page.mouse.click(  # type: ignore[attr-defined]
                terminal["x"] + (text.index(words) + 2) * terminal["width"] / width,
                terminal["y"] + (line + 0.5) * terminal["height"] / height,
            )
            return


def test_files_of_a_page_go_to_its_browser(house: House, tmp_path: Path) -> None:
    house.spawn("seen")
    with served(house, "seen", folder=tmp_path) as address, browser() as page:
        page.page.goto(address)  # type: ignore[attr-defined]
        page.wait_for(lambda text: " 03 " in text)
        assert house.daemon("pause", "seen").returncode == 0  # or a training keeps a core busy
        page.wait_for("PAUSED")
        with page.page.expect_download() as table:  # type: ignore[attr-defined]
            page.page.keyboard.type(":export csv\n")  # type: ignore[attr-defined]
        page.wait_for(lambda _: page.has_shown("wrote esper-seen-envs-"))
        assert table.value.suggested_filename.startswith("esper-seen-envs-")
        rows = list(csv.DictReader(Path(table.value.path()).read_text().splitlines()))
        assert {int(row["env"]) for row in rows} >= {0, 1, 2, 3}
        given: list[object] = []
        page.page.on("download", lambda one: given.append(one))  # type: ignore[attr-defined]
        page.page.keyboard.type(":screenshot\n")  # type: ignore[attr-defined]
        page.wait_for(lambda _: len(given) == 2)
        files = {one.suggested_filename: Path(one.path()).read_text() for one in given}  # type: ignore[attr-defined]
    assert {Path(name).suffix for name in files} == {".svg", ".txt"}
    assert all(name.startswith("esper-seen-") for name in files)
    assert all("PAUSED" in text for text in files.values()), "both show the screen"
    assert list(tmp_path.iterdir()) == [], "nothing is written where it is served"


def test_without_the_token_no_terminal_is_opened(house: House) -> None:
    with served(house) as address:
        parts = urlsplit(address)
        origin, token = f"http://{parts.netloc}", parts.fragment
        for path in ("/ws", "/ws?token=wrong", "/ws?token=%ff"):
            assert _status(origin + path) == 403, path
        assert _status(f"{origin}/ws?{token}", {"Origin": "http://evil.example"}) == 403
        for path in ("/", "/static/js/textual.js"):
            assert _status(origin + path) == 200, path
            assert _status(origin + path, {"Host": "evil.example"}) == 403, path
        with browser() as page:
            page.page.goto(origin)  # type: ignore[attr-defined]
            assert "Open the address" in page.page.content()  # type: ignore[attr-defined]
            assert page.text.strip() == ""


def test_tokens_of_two_terminals_reach_no_other_server(house: House) -> None:
    told: list[str] = []

    class Stranger(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            told.append(f"{self.requestline} {self.headers}")
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"hello")

        def log_message(self, *_: object) -> None: ...

    for name in ("first", "second"):
        house.spawn(name)
        assert house.daemon("pause", name).returncode == 0  # or two trainings keep both cores busy
    with (
        http.server.ThreadingHTTPServer(("127.0.0.1", 0), Stranger) as stranger,
        served(house, "first") as one,
        served(house, "second") as two,
        browser() as page,
    ):
        threading.Thread(target=stranger.serve_forever, daemon=True).start()
        page.page.goto(one)  # type: ignore[attr-defined]
        page.wait_for("first")
        other = page.another()
        other.page.goto(two)  # type: ignore[attr-defined]
        other.wait_for("second")
        page.page.reload()  # type: ignore[attr-defined]
        page.screen.reset()
        page.wait_for("first")
        other.page.goto(f"http://127.0.0.1:{stranger.server_port}/")  # type: ignore[attr-defined]
        stranger.shutdown()
    assert told
    assert not any(urlsplit(address).fragment in request for address in (one, two) for request in told)
    assert not any("token" in request for request in told)


def _status(url: str, headers: dict[str, str] | None = None) -> int:
    try:
        with urllib.request.urlopen(
            urllib.request.Request(url, headers=headers or {}), timeout=300
        ) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
