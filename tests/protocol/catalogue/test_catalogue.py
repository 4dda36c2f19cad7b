"""The table of runs: equal to the folders whatever happened, and read from no journal twice."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from esper_overwatch import publish
from esper_overwatch.protocol.catalogue.about import ABOUT_FILE, BadTag, RunAbout, edit_about, read_about
from esper_overwatch.protocol.catalogue.catalogue import CATALOGUE_FILE, Catalogue
from esper_overwatch.protocol.catalogue.entry import RunEntry
from esper_overwatch.protocol.catalogue.moves import list_put_away
from esper_overwatch.protocol.catalogue.selection import Selection
from esper_overwatch.protocol.messages import events as ev
from esper_overwatch.protocol.runs import IDENTITY_FILE, RunFolder, find_run
from esper_overwatch.protocol.storage.folders import EVENTS_FILE
from esper_overwatch.protocol.storage.lock import Lock, holder_of
from tests.trainer.journals import Told, at, epoch, round_finished, round_started, started, write_run

TAGS = st.text(st.characters(exclude_categories=("C", "Z")), min_size=1, max_size=64)
CHANGES = st.tuples(st.lists(TAGS, max_size=4), st.lists(TAGS, max_size=4))


@pytest.fixture
def journals_opened() -> Iterator[list[str]]:
    """Paths of journals that this process opens from now on."""
    opened: list[str] = []
    counts = [True]

    def note(event: str, arguments: tuple[object, ...]) -> None:
        if counts and event == "open" and str(arguments[0]).endswith((".jsonl", ".zst")):
            opened.append(str(arguments[0]))

    sys.addaudithook(note)
    yield opened
    counts.clear()


def write_many(home: Path, number: int) -> None:
    """Ended runs, a real one copied; their files are old enough to be trusted."""
    with publish("run-0", config={"lr": 0.1}, tags=["one"]) as run:
        run.log({"loss": 0.5}, step=1)
    source = home / "runs" / "run-0"
    files = {path.name: path.read_bytes() for path in source.iterdir() if path.is_file()}
    for i in range(1, number):
        folder = home / "runs" / f"run-{i}"
        folder.mkdir()
        for name, content in files.items():
            (folder / name).write_bytes(
                content.replace(b'"id":"', b'"id":"%d' % i) if name == IDENTITY_FILE else content
            )
    for folder in (home / "runs").iterdir():
        make_old(folder)


def make_old(folder: Path) -> None:
    past = time.time() - 60
    for path in [*folder.rglob("*"), folder]:
        os.utime(path, (past, past), follow_symlinks=False)


def kept_and_rebuilt() -> tuple[list[RunEntry], list[RunEntry]]:
    kept = Catalogue().entries()
    Catalogue().rebuild()
    return kept, Catalogue().entries()


def test_thousands_of_ended_runs_are_read_once(home: Path, journals_opened: list[str]) -> None:
    write_many(home, 2000)
    first = Catalogue().entries()
    assert len(first) == 2000
    assert len(journals_opened) >= 2000
    journals_opened.clear()
    assert Catalogue().entries() == first
    found = Catalogue().select(Selection(where="config.lr < 1 AND 'one' IN tags AND summary.loss = 0.5"))
    assert len(found.rows) == 2000
    assert journals_opened == []
    edit_about(home / "runs" / "run-7", lambda about: about.tagged(["seven"], []))
    changed = {entry.name: entry.tags for entry in Catalogue().entries() if "seven" in entry.tags}
    assert changed == {"run-7": ["one", "seven"]}
    assert {Path(path).parent.name for path in journals_opened} == {"run-7"}


def test_a_live_run_is_followed_and_its_death_seen(home: Path) -> None:
    code = (
        "import sys; from esper_overwatch import publish; run = publish('loop', config={'lr': 1})\n"
        "for step, line in enumerate(sys.stdin): run.log({line.strip(): step}, step=step); print(flush=True)"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdin is not None
    assert child.stdout is not None
    catalogue = Catalogue()
    for name in ("a", "b", "a"):
        child.stdin.write(f"{name}\n")
        child.stdin.flush()
        child.stdout.readline()
    wait_for(lambda: [e.summary for e in catalogue.entries()] == [{"a": 2.0, "b": 1.0}])
    (entry,) = catalogue.entries()
    assert (entry.live, entry.pid, entry.state, entry.ended) == (True, child.pid, "TRAINING", None)
    assert catalogue.live["loop"].connection is not None
    child.kill()
    child.communicate()
    (entry,) = catalogue.entries()
    assert (entry.live, entry.pid, entry.state) == (False, None, "DIED")
    kept, rebuilt = kept_and_rebuilt()
    assert kept == rebuilt


def wait_for(condition: object) -> None:
    end = time.monotonic() + 60
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < end
        time.sleep(0.02)


STEPS: list[list[Told]] = [
    [started("b1"), round_started(1), epoch(1, 1)],
    [round_finished(1, 2), round_started(2)],
    [round_finished(2, 2), (ev.RunStopped(reason="r", exit_code=0, rounds=2), at(2, 2))],
    [
        started("b2", resumed_round=1),
        (ev.RunRewound(round=2, epoch=0, from_round=2, from_epoch=2, last={"life": 6}), at(2, 0)),
    ],
    [round_finished(2, 2)],
    [started("b3"), (ev.Scalars(values={"x": float("nan")}, step=1), at(2, 2))],
    [(ev.RunStopped(reason="r", exit_code=0, rounds=2), at(2, 2))],
]


def test_reading_on_equals_reading_all(home: Path) -> None:
    for steps in STEPS:
        write_run(home, "digits", steps).release()
        kept, rebuilt = kept_and_rebuilt()
        assert kept == rebuilt
        assert Catalogue().entries() == kept
    for steps in STEPS:  # without a look at the rebuilt rows in between
        write_run(home, "other", steps).release()
        kept = Catalogue().entries()
    Catalogue().rebuild()
    assert Catalogue().entries() == kept
    assert {entry.name: entry.summary["round"] for entry in kept} == {"digits": 2, "other": 2}


@pytest.mark.parametrize("damage", ["cut", "head", "middle", "empty", "text"])
def test_a_damaged_file_is_made_anew(home: Path, damage: str) -> None:
    write_many(home, 60)
    before = Catalogue().entries()
    file = home / CATALOGUE_FILE
    whole = bytearray(file.read_bytes())
    if damage == "cut":
        del whole[len(whole) // 2 :]
    elif damage == "empty":
        whole.clear()
    elif damage == "text":
        whole = bytearray(b"not a database " * 1000)
    else:
        begin = 0 if damage == "head" else len(whole) // 3
        whole[begin : begin + 8192] = bytes(8192)
    file.write_bytes(whole)
    assert Catalogue().entries() == before
    assert file.stat().st_size > 4096
    assert len(Catalogue().select(Selection(where="config.lr = 0.1")).rows) == 60


def test_a_home_that_cannot_be_written_is_read(home: Path) -> None:
    write_many(home, 3)
    (home / CATALOGUE_FILE).mkdir()
    catalogue = Catalogue()
    assert len(catalogue.entries()) == 3
    assert len(catalogue.select(Selection(where="'one' IN tags")).rows) == 3


def test_many_processes_share_one_file(home: Path) -> None:
    write_many(home, 40)
    code = (
        "from esper_overwatch.protocol.catalogue.catalogue import Catalogue\n"
        "for i in range(5): assert len(Catalogue().entries()) == 40; Catalogue().rebuild()"
    )
    children = [subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE) for _ in range(4)]
    for child in children:
        _, said = child.communicate()
        assert child.returncode == 0, said
    kept, rebuilt = kept_and_rebuilt()
    assert kept == rebuilt


MOVER = """
import random, sys
from esper_overwatch.protocol.catalogue.catalogue import Catalogue
from esper_overwatch.protocol.catalogue.moves import bring_back, list_put_away, put_away, rename_run
from esper_overwatch.protocol.errors import EsperError
from esper_overwatch.protocol.runs import list_runs
draw = random.Random(int(sys.argv[1]))
print(flush=True)
while True:
    try:
        runs, away = list_runs(), list_put_away()
        match draw.randrange(4):
            case 0 if away: bring_back(draw.choice(away).name)
            case 1 if runs: put_away(draw.choice(runs), draw.choice(("trash", "archive")))
            case 2: Catalogue().entries()
            case _ if runs: rename_run(draw.choice(runs), f"name-{draw.randrange(12)}")
    except EsperError:
        pass
"""


def test_no_run_is_lost_or_twice_when_movers_are_killed(home: Path) -> None:
    identities = set()
    for i in range(8):
        with RunFolder.claim(f"name-{i}", kind="published") as run:
            run.events.write_bytes(b"")
            identities.add(run.id)
    draw = random.Random(5)
    for round_ in range(6):
        movers = [
            subprocess.Popen([sys.executable, "-c", MOVER, str(round_ * 2 + i)], stdout=subprocess.PIPE)
            for i in range(2)
        ]
        for mover in movers:
            assert mover.stdout is not None
            mover.stdout.readline()
        time.sleep(draw.uniform(0.0, 0.3))
        for mover in movers:
            mover.send_signal(signal.SIGKILL)
            mover.communicate()
        kept, rebuilt = kept_and_rebuilt()
        assert kept == rebuilt
        away = [msgspec.json.decode((one.path / IDENTITY_FILE).read_bytes())["id"] for one in list_put_away()]
        assert sorted([entry.id for entry in kept] + away) == sorted(identities)
        assert all(find_run(entry.name).id == entry.id for entry in kept)


@given(st.lists(CHANGES, max_size=6), st.lists(TAGS, max_size=4), st.one_of(st.none(), st.text()))
def test_tags_follow_the_last_change(
    tmp_path_factory: pytest.TempPathFactory,
    changes: list[tuple[list[str], list[str]]],
    own: list[str],
    notes: str | None,
) -> None:
    folder = tmp_path_factory.mktemp("run")
    (folder / IDENTITY_FILE).write_text("{}")
    expected = set(own)
    for add, remove in changes:
        edit_about(folder, lambda about, add=add, remove=remove: about.tagged(add, remove))  # type: ignore[misc]
        expected = (expected | set(add)) - (set(remove) - set(add))
        assert read_about(folder) == read_about(folder)
    about = read_about(folder)
    if not any(set(add) & set(remove) for add, remove in changes):
        assert set(about.tags(own)) == expected
    assert len(about.tags(own)) == len(set(about.tags(own)))
    valid = notes is None or notes.encode("utf-8", "replace").decode() == notes
    try:
        edit_about(folder, lambda about: msgspec.structs.replace(about, notes=notes))
        assert valid
        assert read_about(folder).notes == notes
    except BadTag:
        assert not valid
        assert read_about(folder) == about


def test_two_who_tag_at_once_lose_nothing(home: Path) -> None:
    with RunFolder.claim("alpha") as run:
        threads = [
            threading.Thread(
                target=edit_about, args=(run.path, lambda about, i=i: about.tagged([f"t{i}"], []))
            )
            for i in range(16)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert set(read_about(run.path).added) == {f"t{i}" for i in range(16)}
        (run.path / ABOUT_FILE).write_text("{")
        assert read_about(run.path) == RunAbout()
        assert not (run.path / EVENTS_FILE).exists()
        assert Catalogue().entries()[0].tags == []


CLAIMER = """
import json, random, sys, time
from esper_overwatch.protocol.errors import NameTaken
from esper_overwatch.protocol.runs import RunFolder
print(flush=True)
while True:
    try:
        with RunFolder.claim(sys.argv[1], kind="published") as run:
            for _ in range(3):
                assert json.loads((run.path / "run.json").read_bytes())["id"] == run.id
    except NameTaken:
        pass
    time.sleep(random.uniform(0.0, 0.01))  # else the other would seldom find it free on busy cores
"""
RENAMER = """
from esper_overwatch.protocol.catalogue.moves import rename_run
from esper_overwatch.protocol.errors import EsperError
from esper_overwatch.protocol.runs import find_run
done = 0
while done < 150:
    try:
        rename_run(find_run("alpha"), f"was-{done}")
        done += 1
    except EsperError:
        pass
"""


def test_who_claims_a_run_has_it_in_its_place(home: Path) -> None:
    command = [sys.executable, "-c", CLAIMER, "alpha"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as claimer:
        assert claimer.stdout is not None
        claimer.stdout.readline()
        renamer = subprocess.run([sys.executable, "-c", RENAMER], capture_output=True, timeout=300)
        assert renamer.returncode == 0, renamer.stderr
        assert claimer.poll() is None, claimer.communicate()
        claimer.kill()
    entries = Catalogue().entries()
    assert {f"was-{i}" for i in range(150)} <= {entry.name for entry in entries}
    assert len({entry.id for entry in entries}) == len(entries)


def test_folder_renamed_while_it_is_locked_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between a lock's file being opened and locked somebody else may rename the folder."""
    RunFolder.claim("alpha").release()
    renamed: list[Path] = []

    def lock(path: Path) -> Lock:
        found = Lock(path)
        if not renamed:
            renamed.append(path.parent.rename(path.parent.with_name("was")))
        return found

    monkeypatch.setattr("esper_overwatch.protocol.runs.Lock", lock)
    with RunFolder.claim("alpha") as run:
        assert holder_of(run.path / "lock") is not None
        assert holder_of(renamed[0] / "lock") is None
