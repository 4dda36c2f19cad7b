"""CURVE keys on the disk, for gateways on TCP.

<config>/server.key                    this machine's own pair, of all its gateways
<config>/keys/<name>.key               a client's pair and the public key of the server it is for
<config>/authorized_clients.d/<name>.pub   who may connect to this machine, and in which role

<config> is the platform's (`$XDG_CONFIG_HOME/esper`, `~/.config/esper`). Secret files are 0600 or refused.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path

import msgspec
import zmq
from msgspec import Struct

from esper_overwatch.protocol.errors import BadName, KeysUnusable
from esper_overwatch.protocol.messages.roles import Role

from .folders import config_folder, is_valid_name, make_private, open_private, sync_folder, write_atomically

_Z85 = re.compile(r"[0-9A-Za-z.\-:+=^!/*?&<>()\[\]{}@%$#]{40}")
_OF_THE_FILE = (
    errno.ENOENT,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.ELOOP,
    errno.EACCES,
    errno.EPERM,
    errno.ENAMETOOLONG,
)
"""Why a file authorizes no one; any other error passes."""
_ADVICE = "set XDG_CONFIG_HOME to a folder of yours"


class KeyPair(Struct, frozen=True):
    """A CURVE pair: Z85, 40 characters a key."""

    public: str
    secret: str
    server: str = ""
    """Public key of the server that a client's pair is for; not in a server's own file."""

    def __repr__(self) -> str:
        return f"KeyPair({self.public})"


class _Entry(Struct, frozen=True):
    public: str
    role: Role


@dataclass(frozen=True)
class Authorized:
    """A client that may connect."""

    name: str
    public: str
    role: Role


def server_pair(*, make: bool = False) -> KeyPair:
    """This machine's own pair.

    Raises:
        KeysUnusable: there is none (and `make` is off), or its file cannot be used.
    """
    path = config_folder() / "server.key"
    if not path.exists() and make:
        make_private(config_folder(), advice=_ADVICE, readable=True)
        write_secret(path, new_pair())
    if not os.path.lexists(path):
        raise KeysUnusable(
            f"tcp needs this machine's key {path}; make it and a client's: "
            "esper-daemon keys new NAME --role operator"
        )
    return read_secret(path)


def new_pair(server: str = "") -> KeyPair:
    """A fresh pair."""
    public, secret = zmq.curve_keypair()
    while public.startswith(b"-"):  # a command line would take it for an option
        public, secret = zmq.curve_keypair()
    return KeyPair(public=public.decode(), secret=secret.decode(), server=server)


def client_path(name: str) -> Path:
    """The file of a client's pair.

    Raises:
        BadName: not a name.
    """
    if not is_valid_name(name):
        raise BadName(f"{name!r} is not a name for a key: letters, digits, '-', '_' and '.'")
    return config_folder() / "keys" / f"{name}.key"


def client_pair(name: str | None) -> tuple[str, KeyPair]:
    """A client's pair by name; None means the only one there is.

    Raises:
        KeysUnusable: there is none, or more than one, or its file cannot be used.
    """
    folder = config_folder() / "keys"
    known = sorted(path.stem for path in folder.glob("*.key"))
    if name is None:
        if len(known) != 1:
            have = f"there are {', '.join(known)}; give --key NAME" if known else "there is none"
            raise KeysUnusable(f"tcp needs a key in {folder}: {have}")
        name = known[0]
    path = client_path(name)
    if not path.exists():
        raise KeysUnusable(f"no key {name} in {folder}; there are: {', '.join(known) or 'none'}")
    pair = read_secret(path)
    if not pair.server:
        raise KeysUnusable(f"{path} does not say which server it is for; make a new one with --server")
    return name, pair


def write_secret(path: Path, pair: KeyPair) -> None:
    """A new file of mode 0600, on the disk before this returns; never over one that is there.

    Raises:
        KeysUnusable: it is there, or cannot be written.
    """
    try:
        with open(path, "xb", opener=open_private) as file:
            file.write(msgspec.json.format(msgspec.json.encode(pair)) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        sync_folder(path.parent)
    except FileExistsError:
        raise KeysUnusable(f"{path} is there already; remove it first, or take another name") from None
    except OSError as error:
        raise KeysUnusable(f"cannot write {path}: {error.strerror}") from None


def read_secret(path: Path) -> KeyPair:
    """A pair from a file that nobody else can read.

    Raises:
        KeysUnusable: it is not there, is open to others, belongs to somebody else, or holds no pair.
    """
    _check_file(path, mask=0o077, advice=f"chmod 600 {path}")
    try:
        pair = msgspec.json.decode(path.read_bytes(), type=KeyPair)
    except (OSError, msgspec.DecodeError) as error:
        raise KeysUnusable(f"{path} holds no key: {error}") from None
    for text in (pair.public, pair.secret, *([pair.server] if pair.server else [])):
        check_public(text, str(path))
    if zmq.curve_public(pair.secret.encode()).decode() != pair.public:
        raise KeysUnusable(f"{path} is damaged: its two halves do not belong together")
    return pair


def _check_file(path: Path, *, mask: int, advice: str) -> None:
    try:
        status = path.lstat()
    except OSError as error:
        raise KeysUnusable(f"{path} cannot be read: {error.strerror}") from None
    if not stat.S_ISREG(status.st_mode):
        raise KeysUnusable(f"{path} is not a file of its own (a link or a folder); move it away")
    if status.st_uid not in (os.getuid(), 0):
        raise KeysUnusable(f"{path} belongs to uid {status.st_uid}, not to you (uid {os.getuid()})")
    if status.st_mode & mask:
        raise KeysUnusable(
            f"{path} is open to others (mode {stat.S_IMODE(status.st_mode):04o}); run: {advice}"
        )


def _raise_if_passing(error: Exception) -> None:
    """Raise what says nothing of a file, only of the machine at present: full tables, a disk that fails."""
    if isinstance(error, OSError) and error.errno not in _OF_THE_FILE:
        raise error


def check_public(text: str, where: str) -> str:
    """A Z85 key, unchanged.

    Raises:
        KeysUnusable: it is not a key.
    """
    if not _Z85.fullmatch(text):
        raise KeysUnusable(f"{where}: {text[:48]!r} is not a key; a key has 40 characters")
    return text


class AllowList:
    """Clients that may connect: the files of `authorized_clients.d`. `reload` when they changed.

    Attributes:
        clients: by public key.
        problems: files that authorize no one, and why.

    Raises:
        KeysUnusable: the machine cannot read the folder at present.
    """

    def __init__(self) -> None:
        self.folder = config_folder() / "authorized_clients.d"
        self.clients: dict[str, Authorized] = {}
        self.problems: list[str] = []
        self._seen: object = None
        try:
            self.reload()
        except OSError as error:
            raise KeysUnusable(f"{self.folder} cannot be read: {error.strerror}") from None

    @property
    def changed(self) -> bool:
        """True if the files have changed since they were read; raises OSError as `reload` does."""
        return self._signature() != self._seen

    def reload(self) -> list[Authorized]:
        """Read the files again; gives those whose key counts no longer. A wrong file lets no one in.

        Raises:
            OSError: the machine cannot read them at present (EMFILE, ENOMEM, EIO, ...); nothing has changed.
        """
        before = self.clients
        clients: dict[str, Authorized] = {}
        problems: list[str] = []
        seen = self._signature()
        for path in self._files():
            try:
                entry = self._read(path)
            except KeysUnusable as error:
                problems.append(str(error))
                continue
            clients[entry.public] = entry
        self._seen, self.clients, self.problems = seen, clients, problems
        return [one for public, one in before.items() if public not in self.clients]

    def _read(self, path: Path) -> Authorized:
        try:
            path.lstat()
        except OSError as error:
            _raise_if_passing(error)
        _check_file(path, mask=0o022, advice=f"chmod go-w {path}")
        try:
            entry = msgspec.json.decode(path.read_bytes(), type=_Entry)
        except (OSError, msgspec.DecodeError) as error:
            _raise_if_passing(error)
            raise KeysUnusable(f"{path} authorizes no one: {error}") from None
        check_public(entry.public, str(path))
        return Authorized(path.stem, entry.public, entry.role)

    def _files(self) -> list[Path]:
        """Files that authorize; a folder that is not there has none."""
        try:
            names = os.listdir(self.folder)
        except OSError as error:
            _raise_if_passing(error)
            return []
        return [self.folder / name for name in sorted(names) if name.endswith(".pub")]

    def _signature(self) -> object:
        try:
            with os.scandir(self.folder) as entries:
                found = [(e.name, e.stat(follow_symlinks=False)) for e in entries]
        except OSError as error:
            _raise_if_passing(error)
            return None
        return sorted((name, s.st_ino, s.st_mtime_ns, s.st_size, s.st_mode) for name, s in found)

    def authorize(self, name: str, public: str, role: Role) -> None:
        """Let a key in, or give it another role; at once for gateways that run.

        Raises:
            KeysUnusable: not a name or a key, or the key is authorized under another name.
        """
        client_path(name)
        check_public(public, name)
        other = self.clients.get(public)
        if other is not None and other.name != name:
            raise KeysUnusable(f"this key is authorized already, as {other.name}")
        make_private(self.folder.parent, advice=_ADVICE, readable=True)
        make_private(self.folder, advice=_ADVICE, readable=True)
        write_atomically(self.folder / f"{name}.pub", msgspec.json.encode(_Entry(public, role)) + b"\n")
        self.clients[public] = Authorized(name, public, role)

    def revoke(self, name: str) -> Authorized | None:
        """Let a key in no longer, at once for gateways that run; gives it, None where it is not authorized.

        Raises:
            KeysUnusable: its file cannot be removed.
        """
        path = self.folder / client_path(name).with_suffix(".pub").name
        try:
            path.unlink()
            sync_folder(self.folder)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise KeysUnusable(f"cannot remove {path}: {error.strerror}") from None
        found = next((one for one in self.clients.values() if one.name == name), None)
        self.clients = {p: one for p, one in self.clients.items() if one.name != name}
        return found or Authorized(name, "", "viewer")


def make_client(name: str, *, server: str | None, role: Role | None) -> KeyPair:
    """A new client's pair in `keys`; with a role it is authorized here.

    Args:
        name: what it is called, here and in the audit.
        server: public key of the server it is for; None = this machine, whose pair is made where needed.
        role: what it may do here; None where somebody else authorizes it.

    Raises:
        KeysUnusable: the name is taken or something cannot be written.
    """
    path = client_path(name)
    make_private(config_folder(), advice=_ADVICE, readable=True)
    make_private(path.parent, advice=_ADVICE)
    allowed = AllowList()
    if role is not None and any(one.name == name for one in allowed.clients.values()):
        raise KeysUnusable(f"{name} is authorized already; revoke it first, or take another name")
    pair = new_pair(check_public(server, "--server") if server else server_pair(make=True).public)
    write_secret(path, pair)
    if role is not None:
        allowed.authorize(name, pair.public, role)
    return pair
