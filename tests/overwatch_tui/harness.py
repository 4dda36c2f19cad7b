"""A session over a list of events: what the screens are tested with."""

from __future__ import annotations

import asyncio
import itertools
import unicodedata
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import replace
from functools import cache, wraps
from typing import Any

from textual.app import App
from textual.events import Key
from textual.keys import _character_to_key, _get_unicode_name_from_key

from esper_overwatch.overwatch_tui.model.state import State
from esper_overwatch.overwatch_tui.panels import PANELS
from esper_overwatch.overwatch_tui.render.env_rows import worst_env
from esper_overwatch.overwatch_tui.render.layout import compose_screen
from esper_overwatch.overwatch_tui.render.panel import PanelInputs
from esper_overwatch.overwatch_tui.render.view_state import ViewState
from esper_overwatch.overwatch_tui.session import Session
from esper_overwatch.overwatch_tui.source.link_status import LinkStatus
from esper_overwatch.protocol.client.items import Item, LinkChanged, RequestOutcome, Reset
from esper_overwatch.protocol.codec.frames import new_id
from esper_overwatch.protocol.codec.json_lines import Event
from esper_overwatch.protocol.errors import RequestError
from esper_overwatch.protocol.messages.events import spec_of

from . import journal

VIEWS = tuple(view.name for view in PANELS.views)
"""Names of the views of a training, in the order of their keys."""


class ListFeed:
    """A feed of prepared items, with a clock that stands still and a link that the test sets.

    Its daemon is an older one, which knows no `history`.
    """

    def __init__(self, items: Iterable[Item] = (), **link: Any) -> None:
        self.items = list(items)
        self.link = {"state": "live", "age_seconds": 0.4, "name": "digits-7f3a", "num_clients": 2, **link}
        self.clock: int | None = None
        self.ts = journal.START
        self.run_id: str | None = "7f3a09c1"
        self.boot: str | None = "b1"
        self.requests: list[tuple[str, str, dict[str, Any]]] = []
        self.closed = False
        self.batch: int | None = None
        """As many items come at once; None = all."""

    @property
    def is_caught_up(self) -> bool:
        return not self.items

    def drain(self) -> list[Item]:
        items, self.items = self.items[: self.batch], self.items[self.batch :] if self.batch else []
        self.ts = max([self.ts, *(item.ts for item in items if isinstance(item, Event))])
        return items

    def now(self) -> int:
        return self.clock if self.clock is not None else self.ts

    def update_link(self, link: LinkStatus) -> None:
        for name, value in self.link.items():
            setattr(link, name, value)

    def request(self, method: str, params: dict[str, Any]) -> str:
        id_ = new_id()
        if method == "history":
            refusal = RequestError("unknown_method", "no method 'history'")
            self.items.append(RequestOutcome(id_, method, None, refusal, 0.0))
        else:
            self.requests.append((id_, method, params))
        return id_

    def answer(self, result: dict[str, Any] | None = None, error: Any = None) -> str:
        """Answer the newest request; returns its id."""
        id_, method, _ = self.requests[-1]
        self.items.append(RequestOutcome(id_, method, result, error, 0.038))
        return id_

    def close(self) -> None:
        self.closed = True


@cache
def events(
    envs: int = 16, rounds: int = 6, slots: int = 3, has_incidents: bool | None = None
) -> tuple[Event, ...]:
    """A recorded run."""
    made = journal.events(envs=envs, rounds=rounds, slots=slots, has_incidents=has_incidents)
    return tuple(made)


@cache
def state(envs: int = 16, rounds: int = 6, slots: int = 3, has_incidents: bool | None = None) -> State:
    """What is known after that run; not to be changed."""
    return folded(events(envs, rounds, slots, has_incidents))


def folded(found: Iterable[Event]) -> State:
    made = State()
    for event in found:
        made.fold(event)
    return made


_later = itertools.count(1_000_000)


def after_all(event: Event, **changes: Any) -> Event:
    """An event as it would come again after all others."""
    return replace(event, seq=next(_later), **changes)


def snapshot_of(found: Sequence[Event]) -> list[Event]:
    """What a daemon that has told these sends to one that joins: the newest of each type and subject."""
    kept: dict[tuple[Any, ...], deque[Event]] = {}
    for event in found:
        spec = spec_of(type(event.data))
        subject = [event.ctx.env if k == "env" else getattr(event.data, k, 0) for k in spec.key]
        kept.setdefault((spec.type, *subject), deque(maxlen=spec.keep)).append(event)
    held = {id(event) for events in kept.values() for event in events}
    return [event for event in found if id(event) in held]


def session(found: Iterable[Event] = (), view: ViewState | None = None, **link: Any) -> Session:
    """A session that has joined and heard these events."""
    feed = ListFeed([LinkChanged("live"), Reset("run digits-7f3a, boot b1"), *found], **link)
    made = Session(feed, view or ViewState())
    made.tick()
    return made


def panel_inputs(known: State | None = None, view: ViewState | None = None, **link: Any) -> PanelInputs:
    """The moment of the newest event, with a link as given."""
    made = LinkStatus(
        state="live",
        age_seconds=0.4,
        name="digits-7f3a",
        events_per_second=21.3,
        num_clients=2,
        trainer_age_seconds=0.3,
    )
    for name, value in link.items():
        setattr(made, name, value)
    known, view = known or State(), view or ViewState()
    if not view.env and not view.is_env_chosen:
        view.env = worst_env(known)
    return PanelInputs(known, view, made, known.ts or journal.START)


def draw(made: PanelInputs, width: int, height: int) -> str:
    """The picture as text."""
    return compose_screen(PANELS, made, made, width, height).text(width, height)


def in_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """An asynchronous test as an ordinary one."""

    @wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(test(*args, **kwargs))

    return run


LOOP_TURNS = 12
"""So often the event loop turns between two keys: most have had their effect by then, as in fast typing."""


async def type_keys(app: App[Any], *names: str) -> None:
    """Send keys as the terminal's driver does; a pilot waits 40 ms for each until all is quiet."""
    for given in names:
        name = _character_to_key(given) if len(given) == 1 and not given.isalnum() else given
        try:
            character: str | None = unicodedata.lookup(_get_unicode_name_from_key(name))
        except KeyError:
            character = name if len(name) == 1 else None
        key = Key(name, character)
        key.set_sender(app)
        app.post_message(key)
        for _ in range(LOOP_TURNS):
            await asyncio.sleep(0)
