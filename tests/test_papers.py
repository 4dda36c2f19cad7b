"""The pages that people write: every file and every link that they name exists."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
PAGES = (
    "README",
    "CONTRIBUTING",
    "SECURITY",
    *sorted(
        str(page.relative_to(ROOT).with_suffix(""))
        for page in (ROOT / "docs").rglob("*.md")
        if page.stem not in ("findings", "faults")
    ),
)
"""CHANGELOG names what has been, and so do the two records of 0.2.0, docs/lab/findings.md and faults.md."""
PATH = re.compile(r"(?<![\w./~-])(?:protocol|trainer|overwatch_tui|tools|tests|benchmarks|docs)/[\w./-]*\w")
TEST = re.compile(r"(tests/[\w./]+\.py)::(\w+)")
LINK = re.compile(r"\]\(([^)\s]+)\)")
REPOSITORY = re.compile(r"https://github\.com/esper-overwatch/esper-overwatch/(?:blob|raw|tree)/main/")
"""Where README, which is read on PyPI too, has its links."""
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def text_of(page: str) -> str:
    return (ROOT / f"{page}.md").read_text(encoding="utf-8")


def anchors(page: Path) -> set[str]:
    """Names by which GitHub links to the headings of a page."""
    headings = HEADING.findall(page.read_text(encoding="utf-8"))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES)
def test_files_named_in_a_page_exist(page: str) -> None:
    missing = {path for path in PATH.findall(text_of(page)) if not (ROOT / path).exists()}
    assert not missing


@pytest.mark.parametrize("page", PAGES)
def test_tests_named_in_a_page_exist(page: str) -> None:
    named = set(TEST.findall(text_of(page)))
    assert not {f"{file}::{name}" for file, name in named if f"def {name}(" not in (ROOT / file).read_text()}


def test_make_bench_runs_the_commands_that_its_page_says() -> None:
    said = subprocess.run(
        ["make", "-n", "bench"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    run = set(re.findall(r"benchmarks/(\w+)\.py", said.splitlines()[-1]))
    rows = [line for line in text_of("docs/lab/benchmarks").splitlines() if line.startswith("| `.venv")]
    apart = {row for row in rows if "Not part of `make bench`" in row}
    names = {row: re.findall(r"benchmarks\.(\w+)", row)[0] for row in rows}
    assert not run & {names[row] for row in apart}
    assert {names[row] for row in rows if row not in apart} <= run
    programs = {p.stem for p in (ROOT / "benchmarks").glob("*.py") if "__main__" in p.read_text("utf-8")}
    assert run <= programs, "each is a command"


@pytest.mark.parametrize("page", PAGES)
def test_links_of_a_page_lead_somewhere(page: str) -> None:
    for link in LINK.findall(text_of(page)):
        in_repository = REPOSITORY.match(link)
        if "://" in link and not in_repository:
            continue
        folder = ROOT if in_repository else (ROOT / f"{page}.md").parent
        link = REPOSITORY.sub("", link)
        file, _, anchor = link.partition("#")
        target = folder / file if file else ROOT / f"{page}.md"
        assert target.exists(), link
        if anchor:
            assert anchor in anchors(target), link


def test_readme_has_no_relative_links() -> None:
    links = LINK.findall(text_of("README"))
    assert len(links) > 10
    assert [link for link in links if not link.startswith("https://")] == []


def test_the_site_shows_every_page() -> None:
    parts = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    names = re.findall(r"[\w/-]+\.md", str(parts))
    assert sorted(names) == sorted(
        str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")
    )


def test_what_a_user_reads_first_is_short() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs/tutorial").iterdir(), *(ROOT / "docs/how-to").iterdir()]
    assert sum(page.stat().st_size for page in pages) < 60_000
