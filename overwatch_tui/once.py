"""`--once`: one frame as text or JSON, for scripts, logs and terminals of any size. No Textual in here."""

from __future__ import annotations

import time
from typing import Any

from protocol.errors import EsperError, NoReply, RunNotFound

from .compose import compose
from .envrows import LETTERS, row_of
from .feed import ReplayFeed
from .session import Session

FIND_S = 5.0
ANSWER_S = 15.0
STEP_S = 0.02


class RunEnded(EsperError):
    """The run is over before what was waited for came."""

    exit_code = 3


def wait(session: Session, *, after_round: int) -> None:
    """Follow until there is something to show.

    Args:
        session: what to follow.
        after_round: 0 waits for the first epoch, N for the end of round N.

    Raises:
        RunNotFound: no live run within 5 s.
        NoReply: found, but silent.
        RunEnded: it ended before.
    """
    began = time.monotonic()
    while not _ready(session, after_round):
        if session.tick():
            continue
        state = session.link.state
        waited = time.monotonic() - began
        if state == "searching" and waited > FIND_S:
            raise RunNotFound(session.link.said)
        if state == "ended":
            round_ = f"; it finished {session.state.rounds_done} rounds" if after_round else ""
            raise RunEnded(f"{session.link.said or 'the run has ended'}{round_}")
        if state == "lost" or (state == "connecting" and waited > ANSWER_S):
            raise NoReply(session.link.said)
        time.sleep(STEP_S)
    session.tick()


def _ready(session: Session, after_round: int) -> bool:
    state = session.state
    if isinstance(session.feed, ReplayFeed) and not after_round:
        return session.feed.ended and state.epoch is not None
    if after_round:
        return state.rounds_done >= after_round and state.epoch is not None
    return state.epoch is not None and session.link.state in ("live", "slow")


def text(session: Session, width: int, height: int) -> str:
    """The frame that the terminal would show."""
    frame = session.frame()
    return compose(frame, frame, width, height).text(width, height)


def summary(session: Session) -> dict[str, Any]:
    """The same as plain data; None is what was not measured."""
    state, link = session.state, session.link
    last = state.rounds[-1] if state.rounds else None
    return {
        "run": state.run.name if state.run else link.name,
        "id": state.run.run if state.run else None,
        "link": link.state,
        "heartbeat_age_s": link.age,
        "state": state.run_state or link.trainer,
        "round": state.ctx.round,
        "rounds": state.rounds_asked,
        "epoch": state.epoch_ctx.epoch,
        "level": state.ctx.level,
        "slots": state.slots,
        "envs": [_env(session, env) for env in range(state.envs)],
        "last_round": None
        if last is None
        else {
            "return_mean": last.return_mean,
            "accuracy_mean": last.accuracy_mean,
            "accuracy_best": last.accuracy_best,
            "best_env": last.best_env,
            "test_accuracy_mean": last.test_accuracy_mean,
            "env_epochs_per_second": last.env_epochs_per_second,
        },
        "policy": None
        if state.ppo is None
        else {name: getattr(state.ppo, name) for name in ("approx_kl", "entropy", "explained_variance")},
        "anomalies": [
            {
                "source": r.source, "kind": r.kind, "severity": r.severity, "active": r.active,
                "value": r.value, "threshold": r.threshold, "count": r.count, "since": r.first,
            }
            for r in state.anomalies.ordered()
        ],
    }  # fmt: skip


def _env(session: Session, env: int) -> dict[str, Any]:
    state = session.state
    row = row_of(state, env, session.feed.now(), session.view.glyphs)
    epoch = state.epoch
    stages = epoch.stage[env] if epoch is not None and env < len(epoch.stage) else []
    return {
        "env": env,
        "status": row.status,
        "accuracy": row.accuracy,
        "return": row.total,
        "gradient_norm": row.gradient,
        "norm_drift": row.drift,
        "action": row.action,
        "trouble": row.trouble or None,
        "stages": [state.stage_name(code) for code in stages],
        "slots": "".join(LETTERS.get(state.stage_name(code), "?") for code in stages),
    }
