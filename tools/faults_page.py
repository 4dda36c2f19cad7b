"""Writes docs/faults.md: the faults that the wire is tested with, and the tests that inject them.

`python -m tests.faults`. A test names what it injects by the marker `fault(NUMBER)`.
"""

from __future__ import annotations

from tests.marks import ROOT, holders, rows

PAGE = ROOT / "docs" / "faults.md"

GROUPS = {
    "Transport": {
        1: "A hundred readers join one after another while thousands of events a second flow: "
        "none has a hole.",
        2: "A reader sleeps a quarter of a second after every batch: it misses nothing and holds nobody up.",
        3: "A reader is stopped for seconds and let go on: it ends with exactly the journal's events.",
        4: "A reader is killed in the middle of a batch: the others notice nothing, "
        "the daemon's memory stays flat.",
        5: "60,000 events at once: the journal has all of them, and so has a reader.",
        6: "The last batch is lost and nothing follows: the heartbeat's numbers tell, a replay brings it.",
        7: "The daemon is killed: its successor repairs the journal and goes on numbering, readers join it.",
        8: "The journal's last line, or a compressed frame, is torn at each byte: "
        "everything whole before it is read.",
        9: "The disk is full, turns read-only or takes seconds for a write: the trainer emits as before, "
        "it is told, and what could not be kept is counted.",
        10: "The ssh tunnel dies and comes back: a command that waited for it is not carried out late.",
        11: "80 ms there and back, and losses: a reader joins, repairs and commands.",
        12: "Queues of one message and any loss up to a half: "
        "in the end the reader holds the journal's events.",
        13: "Frames that are repeated, reordered, cut, too many, empty, too large, no UTF-8 or too deep: "
        "an error for who sent them, the daemon lives.",
    },
    "Control": {
        14: "The same request ten times: carried out once, answered alike.",
        15: "An id with another body: refused, the first stays.",
        16: "A request behind its deadline is not carried out; "
        "a clock that is an hour off on either side changes nothing.",
        17: "A request meant for the boot before: refused.",
        18: "Each method in each state: carried out or refused with the states that would do.",
        19: "The trainer sleeps, or holds the interpreter in C: the heartbeat's beat, or its absence, tells "
        "which; who commands is told.",
        20: "Who asked is gone before the answer: counted.",
        21: "`stop` while hundreds of megabytes are replayed: answered in between.",
        22: "A thousand clients at once: all are served, and nothing stays behind when they leave.",
        23: "A lease runs out: others may command again.",
    },
    "Security": {
        24: "A socket folder that others may enter, that is a link, or that is somebody else's: refused.",
        25: "A secret key that others may read: refused.",
        26: "Another user of the machine at the command socket: not heard.",
        27: "A viewer's key sends commands: refused, with an event that names it.",
        28: "An unknown key, a wrong server's, none at all: said in words within a second.",
        29: "A key is revoked on a live connection: it counts for nothing from then on.",
        30: "The authentication does not answer: nobody gets in.",
        31: "A second daemon for the same run: told who holds it; the first is unharmed.",
        32: "Captured bytes are sent again on a new connection: they open nothing.",
    },
    "Process": {
        33: "A forked worker outlives the daemon: readers notice, and a restart works, on a port too or with "
        "words about who holds it.",
        34: "Events of a forked child: there are none.",
        35: "SIGTERM in the middle of a checkpoint, SIGTERM twice, a signal inside a long operation of "
        "torch: what is written is whole, and the end is told at once.",
        36: "A service manager's socket hears readiness, signs of life, reload and end in their order.",
        37: "Closing with unsent messages and readers that take nothing: it ends in bounded time.",
        38: "A path that is too long for a socket: one line that says so.",
        39: "No runtime folder, or one that is gone: another is taken.",
        40: "A stale connection file whose process number is somebody else's: not believed.",
        41: "Eight runs on a machine: side by side, addressed by the beginning of a name.",
    },
    "Data": {
        42: "NaN, infinities, -0.0, 1e308, integers to 2^63, scalars and columns of numpy and torch: "
        "the same after a round trip, or an error that names the event.",
        43: "Text that is no UTF-8, lone surrogates: escaped, never an unreadable line.",
        44: "Every type of event: encoded, valid by the schema, decoded to the same.",
        45: "Lines of older versions: read for ever.",
        46: "jq and JavaScript, whose numbers are doubles: each number of an event or a time is exact there.",
    },
}
FAULTS = {number: words for group in GROUPS.values() for number, words in group.items()}


def page() -> str:
    """The whole page as Markdown."""
    held = holders("fault")
    lines = [
        "# Faults",
        "",
        "Made by `make docs` from the tests' markers; do not edit.",
        "",
        "What goes wrong on a wire, on a disk, with a key or with a process, and what must hold then.",
        "The tests beside a fault inject it.",
    ]
    for group, faults in GROUPS.items():
        lines += [
            "",
            f"## {group}",
            "",
            "| fault | what is done, and what holds | held by |",
            "|---|---|---|",
        ]
        lines += rows(faults, held)
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
