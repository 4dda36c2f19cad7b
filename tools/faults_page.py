"""Writes docs/lab/faults.md: the faults that the wire is tested with, and the tests that inject them.

`python -m tools.faults_page`. A test names what it injects by the marker `fault(NUMBER)`.
"""

from __future__ import annotations

from .markers import ROOT, holders, rows

PAGE = ROOT / "docs" / "lab" / "faults.md"

GROUPS = {
    "Transport": {
        1: "A hundred readers join one after another while thousands of events a second flow: "
        "none has a hole.",
        2: "A reader sleeps a quarter of a second after every batch: it misses nothing and delays nobody.",
        3: "A reader is stopped for seconds and continued: it ends with exactly the journal's events.",
        4: "A reader is killed in the middle of a batch: the others notice nothing, "
        "the daemon's memory stays flat.",
        5: "60,000 events at once: the journal has all of them, and so has a reader.",
        6: "The last batch is lost and nothing follows: the heartbeat's numbers show it, a replay brings it.",
        7: "The daemon is killed: its successor repairs the journal and goes on numbering, readers join it.",
        8: "The journal's last line, or a compressed frame, is torn at each byte: "
        "every complete line before it is read.",
        9: "The disk is full, turns read-only or takes seconds for a write: the trainer emits as before, "
        "an event reports it, and what could not be kept is counted.",
        10: "The ssh tunnel dies and comes back: a command that waited for it is not executed late.",
        11: "80 ms there and back, and losses: a reader joins, repairs and commands.",
        12: "Queues of one message and any loss up to a half: "
        "in the end the reader has the journal's events.",
        13: "Frames that are repeated, reordered, cut, too many, empty, too large, not UTF-8 or too deep: "
        "the sender gets an error, the daemon goes on.",
    },
    "Control": {
        14: "The same request ten times: executed once, answered alike.",
        15: "An id with another body: refused, the first request stands.",
        16: "A request past its deadline is not executed; "
        "a clock that is an hour off on either side changes nothing.",
        17: "A request for an earlier boot: refused.",
        18: "Each method in each state: executed, or refused with the states that allow it.",
        19: "The trainer sleeps, or holds the interpreter in C: the heartbeat's beat, or its absence, shows "
        "which; the client that commands gets the reason.",
        20: "The client that asked is gone before the answer: counted.",
        21: "`stop` while hundreds of megabytes are replayed: answered in between.",
        22: "A thousand clients at once: all are served, and nothing is left of them when they leave.",
        23: "A lease expires: other clients may command again.",
    },
    "Security": {
        24: "A socket folder that others may enter, that is a link, or another user's: refused.",
        25: "A secret key that others may read: refused.",
        26: "Another user of the machine at the command socket: refused.",
        27: "A viewer's key sends commands: refused, with an event that names it.",
        28: "An unknown key, a wrong server's, none at all: the client reports which, within a second.",
        29: "A key is revoked on a live connection: from then on it may do nothing.",
        30: "The authentication does not answer: every connection is refused.",
        31: "A second daemon for the same run: refused with the holder's process; the first goes on.",
        32: "Captured bytes are sent again on a new connection: refused.",
    },
    "Process": {
        33: "A forked worker outlives the daemon: readers notice, and a restart works, on a port too, "
        "or the error names the process that holds it.",
        34: "Events of a forked child: there are none.",
        35: "SIGTERM in the middle of a checkpoint, SIGTERM twice, a signal inside a long operation of "
        "torch: what is written is complete, and the end is announced at once.",
        36: "A service manager's socket receives readiness, signs of life, reload and end in their order.",
        37: "Closing with unsent messages and readers that take nothing: ends in bounded time.",
        38: "A path that is too long for a socket: one line that says so.",
        39: "No runtime folder, or one that is gone: another is taken.",
        40: "A stale connection file whose process number belongs to another program: ignored.",
        41: "Eight runs on one machine: independent; the beginning of a name addresses one.",
    },
    "Data": {
        42: "NaN, infinities, -0.0, 1e308, integers to 2^63, scalars and columns of numpy and torch: "
        "the same after a round trip, or an error that names the event.",
        43: "Text that is not UTF-8, lone surrogates: escaped, never an unreadable line.",
        44: "Every type of event: encoded, valid by the schema, decoded to the same.",
        45: "Lines of older versions: read by every later one.",
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
