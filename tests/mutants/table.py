"""The table of mutants: one exact change of a file each, and what should notice it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

SERVER, JOURNAL, STORAGE = (f"tests/protocol/{name}" for name in ("server", "journal", "storage"))
POWER = "tests/power/test_journal.py"
CHAOS = "chaos"
"""In place of tests: the chaos is to see it."""


@dataclass(frozen=True)
class Mutant:
    """A promise that a change of the code breaks."""

    name: str
    file: str
    old: str
    """Stands in the file once."""
    new: str
    killers: tuple[str, ...]
    """Paths of default tests, or `CHAOS`."""

    def applied(self, root: Path) -> str:
        """The file's text with the change.

        Raises:
            ValueError: what is to be changed does not stand there, or more than once.
        """
        text = (root / self.file).read_text()
        if (count := text.count(self.old)) != 1:
            raise ValueError(
                f"{self.name}: {self.file} has its text {count} times: {self.old.strip()[:60]!r}"
            )
        return text.replace(self.old, self.new)


def _mutant(name: str, file: str, old: str, new: str, *killers: str) -> Mutant:
    return Mutant(name, file, old, new, killers)


_EMITTER, _PUBLISHER, _SERVER = (f"protocol/server/{name}.py" for name in ("emitter", "publisher", "server"))
_REQUESTS, _WRITER = "protocol/server/request_handler.py", "protocol/journal/writer.py"
_COMPACTOR, _FOLDERS = "protocol/journal/compactor.py", "protocol/storage/folders.py"
_LINES, _LOCK, _KEYS = (
    "protocol/journal/line_files.py",
    "protocol/storage/lock.py",
    "protocol/storage/keys.py",
)
_TEST_WRITER, _TEST_SEGMENTS = f"{JOURNAL}/test_writer.py", f"{JOURNAL}/test_segments.py"
_TEST_REQUESTS, _TEST_SERVER = f"{SERVER}/test_request_handler.py", f"{SERVER}/test_server.py"
_TEST_CHECKPOINT = "tests/trainer/test_checkpoint.py"
_TEST_PUBLISHER, _TEST_EMITTER = f"{SERVER}/test_publisher.py", f"{SERVER}/test_emitter.py"
_TEST_GATEWAY = "tests/protocol/test_gateway.py"

MUTANTS = (
    _mutant(
        "drop_life",
        _EMITTER,
        "            queue.events.append(emitted)\n\n    def overflow_into",
        "            self._count = getattr(self, '_count', 0) + 1\n"
        "            if queue.stream != 'life' or self._count % 7:\n"
        "                queue.events.append(emitted)\n\n    def overflow_into",
        _TEST_EMITTER,
    ),
    _mutant(
        "drop_command_done",
        _SERVER,
        "        self.emitter.emit(CommandDone(id=command.id",
        "        if hash(command.id) % 3 == 0:\n            return\n"
        "        self.emitter.emit(CommandDone(id=command.id",
        f"{SERVER}/test_command_registry.py",
    ),
    _mutant("no_fdatasync", _WRITER, "os.fdatasync(fd)", "fd", POWER),
    _mutant(
        "no_metric_sync",
        _PUBLISHER,
        "if is_wanted or has_life or now - self._synced >= SYNC_SECONDS:",
        "if is_wanted or has_life:",
        _TEST_PUBLISHER,
    ),
    _mutant(
        "no_life_sync",
        _PUBLISHER,
        "if is_wanted or has_life or now - self._synced >= SYNC_SECONDS:",
        "if is_wanted or now - self._synced >= SYNC_SECONDS:",
        _TEST_PUBLISHER,
    ),
    _mutant(
        "cut_one_more",
        _LINES,
        '        if line.endswith(b"\\n") and _valid(line[:-1]):\n            break\n',
        '        if line.endswith(b"\\n") and _valid(line[:-1]):\n'
        "            end = begin\n            break\n",
        _TEST_WRITER,
    ),
    _mutant(
        "viewer_may_stop",
        _REQUESTS,
        "    if not is_allowed(peer.role, need):",
        '    if not is_allowed(peer.role, need) and request.method != "stop":',
        _TEST_GATEWAY,
    ),
    _mutant(
        "publish_before_write",
        _PUBLISHER,
        "        self._journal.append(self._unwritten)\n"
        "        batches, self._unwritten = self._unwritten, []\n"
        "        self._written_ns = max(self._written_ns, begun)\n"
        "        try:\n",
        "        self._publish(self._unwritten)\n"
        "        self._journal.append(self._unwritten)\n"
        "        batches, self._unwritten = [], []\n"
        "        self._written_ns = max(self._written_ns, begun)\n"
        "        try:\n",
        _TEST_PUBLISHER,
    ),
    _mutant(
        "checkpoint_before_journal",
        "trainer/control/checkpoint_saver.py",
        "        self._flush(FLUSH_SECONDS)\n",
        "",
        "tests/trainer/control",
    ),
    _mutant(
        "no_seal_check",
        "trainer/checkpoint.py",
        "        return digest.hexdigest().encode() == seal[len(_SEAL) :]",
        "        return True",
        _TEST_CHECKPOINT,
    ),
    _mutant(
        "replay_begins_later",
        "protocol/server/queries.py",
        "found = self._range(params.stream, params.first, last, limit=MAX_REPLAY_BYTES)",
        "found = self._range(params.stream, params.first + 1, last, limit=MAX_REPLAY_BYTES)",
        _TEST_SERVER,
    ),
    _mutant(
        "command_twice",
        _REQUESTS,
        'earlier = self._replies.get(request.id, digest) if socket == "ctl" else None',
        "earlier = None",
        _TEST_REQUESTS,
    ),
    _mutant(
        "no_file_sync",
        _FOLDERS,
        "            file.flush()\n            os.fsync(file.fileno())\n        partial.replace(path)",
        "            file.flush()\n        partial.replace(path)",
        _TEST_CHECKPOINT,
    ),
    _mutant(
        "no_folder_sync",
        _FOLDERS,
        "        os.fsync(folder)\n    finally:",
        "        pass\n    finally:",
        POWER,
    ),
    _mutant(
        "deadline_ignored",
        _REQUESTS,
        "if meta.deadline is not None and now > meta.deadline:",
        "if meta.deadline is not None and now > meta.deadline + 10**9:",
        _TEST_REQUESTS,
    ),
    _mutant(
        "audit_omits_key",
        _REQUESTS,
        "                key=peer.key,\n                reason=request.meta.reason,",
        "                key=None,\n                reason=request.meta.reason,",
        _TEST_GATEWAY,
    ),
    _mutant(
        "heartbeat_stale_last",
        _SERVER,
        "last=self._publisher.last,",
        "last=dict(self._publisher.last, life=0),",
        _TEST_SERVER,
    ),
    # Twenty and more of our own.
    _mutant(
        "send_twice",
        _PUBLISHER,
        "                    self._send(frames)",
        "                    self._send(frames)\n                    self._send(frames)",
        _TEST_PUBLISHER,
    ),
    _mutant("lock_not_taken", _LOCK, "fcntl.F_OFD_SETLK, ", "fcntl.F_OFD_GETLK, ", STORAGE),
    _mutant("lock_of_the_process", _LOCK, "fcntl.F_OFD_SETLK, ", "fcntl.F_SETLK, ", STORAGE),
    _mutant("lock_kept_by_forks", _LOCK, "        lock.release()\n", "        pass\n", STORAGE),
    _mutant(
        "lease_never_ends",
        "protocol/server/lease.py",
        "        if not self._token:\n            return\n",
        "        return\n",
        SERVER,
    ),
    _mutant(
        "lease_binds_nobody",
        "protocol/server/lease.py",
        "if not self._token or token == self._token:\n            return\n        left",
        "if not self._token or not token or token == self._token:\n            return\n        left",
        SERVER,
    ),
    _mutant(
        "commands_reversed",
        "protocol/server/mailbox.py",
        "self._commands.append(command)",
        "self._commands.appendleft(command)",
        SERVER,
    ),
    _mutant(
        "mailbox_without_end",
        "protocol/server/mailbox.py",
        "return self.num_waiting < ",
        "return True or self.num_waiting < ",
        SERVER,
    ),
    _mutant(
        "boot_ignored",
        _REQUESTS,
        "if meta.expect.boot is not None and meta.expect.boot != self._boot:",
        "if not self._boot:",
        _TEST_REQUESTS,
    ),
    _mutant(
        "refusals_not_audited",
        _REQUESTS,
        "            self._audit_refusal(request, peer, error)\n",
        "",
        f"{SERVER}/test_audit.py",
        _TEST_REQUESTS,
    ),
    _mutant(
        "another_body_under_an_id",
        "protocol/server/reply_cache.py",
        "if known[1] != digest:",
        "if not known[1]:",
        _TEST_REQUESTS,
    ),
    _mutant(
        "no_rate_limit",
        "protocol/server/rate_limiter.py",
        "if bucket.tokens < 1.0:",
        "if bucket.tokens < -1e9:",
        _TEST_REQUESTS,
    ),
    _mutant(
        "status_of_the_start",
        "protocol/server/queries.py",
        '"seq": dict(self._publisher.last),',
        '"seq": dict(self._publisher.last_before),',
        _TEST_SERVER,
    ),
    _mutant(
        "overflow_out_of_order",
        _EMITTER,
        "            queue.bound = 0\n",
        "",
        _TEST_EMITTER,
    ),
    _mutant(
        "losses_not_counted",
        _EMITTER,
        "            refused.total += count\n",
        "",
        _TEST_EMITTER,
    ),
    _mutant(
        "journal_losses_not_counted",
        _WRITER,
        "        self.lost += sum(map(len, batches[len(kept) :]))\n",
        "",
        JOURNAL,
    ),
    _mutant(
        "written_twice",
        _WRITER,
        "batches = [batch for batch in batches if batch.first > self.last.get(batch.stream, 0)]",
        "batches = list(batches)",
        f"{SERVER}/test_faults.py",
        JOURNAL,
    ),
    _mutant(
        "failed_sync_forgotten",
        _WRITER,
        "            self._is_unsynced = True\n            self._note_failure(error)",
        "            self._note_failure(error)",
        JOURNAL,
    ),
    _mutant(
        "closed_without_sync",
        _WRITER,
        "            return 0\n        self._sync_and_wait()\n",
        "            return 0\n",
        POWER,
    ),
    _mutant(
        "ended_without_sync",
        _WRITER,
        "            self._write_waiting()\n        self._sync_and_wait()\n",
        "            self._write_waiting()\n",
        POWER,
    ),
    _mutant(
        "ticket_of_before",
        _WRITER,
        "else self._syncs + self._is_dirty",
        "else self._syncs",
        POWER,
    ),
    _mutant(
        "torn_line_stays",
        _LINES,
        "        os.ftruncate(fd, end)\n        os.fdatasync(fd)\n",
        "        os.fdatasync(fd)\n",
        _TEST_WRITER,
    ),
    _mutant("no_segment_sync", _COMPACTOR, "            os.fsync(target.fileno())\n", "", POWER),
    _mutant(
        "plain_segment_goes_first",
        _COMPACTOR,
        "        os.replace(part, folder.packed(number))\n",
        "        folder.raw(number).replace(part.with_name('.raw'))\n"
        "        os.replace(part, folder.packed(number))\n"
        "        part.with_name('.raw').replace(folder.raw(number))\n",
        _TEST_SEGMENTS,
    ),
    _mutant("removal_forgets_boots", _COMPACTOR, "            self._keep_boots(gone)\n", "", JOURNAL),
    _mutant(
        "removal_forgets_numbers",
        _COMPACTOR,
        "Manifest(segments=tuple(kept), removed=removed)",
        "Manifest(segments=tuple(kept), removed=self.manifest.removed)",
        JOURNAL,
    ),
    _mutant("secret_for_all", _FOLDERS, "    os.fchmod(fd, 0o600)", "    os.fchmod(fd, 0o644)", STORAGE),
    _mutant("open_secret_accepted", _KEYS, "if status.st_mode & mask:", "if status.st_mode & 0:", STORAGE),
    _mutant(
        "revoked_key_counts",
        _KEYS,
        "        return self._signature() != self._seen",
        "        return False",
        STORAGE,
    ),
    _mutant(
        "private_file_follows_links",
        _FOLDERS,
        "fd = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)\n    os.fchmod",
        "fd = os.open(path, flags | os.O_CLOEXEC, 0o600)\n    os.fchmod",
        "tests/trainer/daemon/test_logging_setup.py",
    ),
)
