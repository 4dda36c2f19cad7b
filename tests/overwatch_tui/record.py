"""Record the real run that storms, pictures and benchmarks play: `python -m tests.overwatch_tui.record`.

A daemon trains eight envs for some rounds; on the way its telemetry is escalated, a profile is recorded and a
checkpoint saved. Names of the machine and paths of it are replaced before the journal is kept.
"""

from __future__ import annotations

import json
from pathlib import Path

import zstandard

from esper_overwatch.protocol.codec.json_lines import Event, decode_line
from tests.e2e.conftest import House, eventually, open_house

RECORDING = Path(__file__).parent / "recorded.jsonl.zst"
NAME = "digits-8"
ROUNDS = 6
OPTIONS = (
    "envs.count=8",
    "episode_epochs=20",
    "task.batches_per_epoch=12",
    "host.channels=8,16,16",
    "host.kernel=3",
    "envs.group_size=4",
    "envs.convolution=grouped",
    "envs.threads=1",
    f"rounds={ROUNDS}",
)
COMMANDS = (
    ("escalate", NAME, "--epochs", "3"),
    ("profile", NAME, "--epochs", "1"),
    ("checkpoint", NAME),
)


def unpack(path: Path) -> Path:
    """Write the recorded journal there; returns the path."""
    path.write_bytes(zstandard.decompress(RECORDING.read_bytes()))
    return path


def recorded_events() -> list[Event]:
    """The events of the recorded journal."""
    return [decode_line(line) for line in zstandard.decompress(RECORDING.read_bytes()).splitlines()]


def record(house: House) -> bytes:
    """Train, give the commands, wait for the end; returns the journal."""
    sets = [word for option in OPTIONS for word in ("--set", option)]
    process = house.spawn(NAME, *sets, small=False)
    for at, command in enumerate(COMMANDS, 2):
        eventually(lambda at=at: len(house.journal(NAME, "round.finished")) >= at)
        given = house.daemon(*command)
        print(" ".join(command), given.stdout.strip() or given.stderr.strip())
    process.wait()
    return (house.run_folder(NAME) / "events.jsonl").read_bytes()


def anonymous(journal: bytes, house: House) -> bytes:
    """The journal without the machine's name, folders and process number."""
    first = next(json.loads(line) for line in journal.splitlines() if b'"run.started"' in line)
    for secret, instead in (
        (str(house.home), "/home/me/.local/share/esper"),
        (str(house.home.parent), "/tmp/esper"),
        (f'"host":"{first["data"]["host"]}"', '"host":"gpu-box"'),
        (f", pid {first['data']['pid']} on ", ", pid 4242 on "),
        (f'"pid":{first["data"]["pid"]}', '"pid":4242'),
    ):
        journal = journal.replace(secret.encode(), instead.encode())
    return journal


def main() -> None:
    with open_house() as house:
        journal = anonymous(record(house), house)
    RECORDING.write_bytes(zstandard.ZstdCompressor(level=19).compress(journal))
    lines = journal.count(b"\n")
    print(f"wrote {lines} events, {len(journal)} bytes as {RECORDING.stat().st_size} to {RECORDING}")


if __name__ == "__main__":
    main()
