"""What a start refuses before it builds anything."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from esper_overwatch.trainer.config import load as settings
from esper_overwatch.trainer.daemon import daemon as daemon_module
from esper_overwatch.trainer.daemon.daemon import run_daemon
from esper_overwatch.trainer.policy.agent import Agent
from esper_overwatch.trainer.policy.saved_policy import PolicyMismatch, SavedPolicy


@pytest.mark.parametrize(
    ("option", "reason"),
    [
        ("host.channels=4,4", "it grows hosts with 3 slots, and these have 2"),
        ("seeds.blueprints=norm", "it plants norm, attention"),
    ],
)
def test_unfit_policy_is_refused_before_hosts_are_built(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch, option: str, reason: str
) -> None:
    """Before, once all were built and the ways to train them measured, in the run's folder."""
    cfg, file = settings.load(), tmp_path / "a.policy"
    agent = Agent(cfg, slots=3, host_parameters=100).state_dict()
    state = {
        "trainer": {"round": 1, "epoch": 0, "agent": agent},
        "config": msgspec.json.encode(cfg).decode(),
    }
    SavedPolicy.of_checkpoint(state, "mine", "0.2.0", "best.pt").write(file)

    def build(*_: object, **__: object) -> None:
        raise AssertionError("hosts are built")

    monkeypatch.setattr(daemon_module, "Daemon", build)
    sets = [f"policy.file={file}", "device=cpu", option]
    with pytest.raises(PolicyMismatch, match=reason):
        run_daemon(name="bad", resume=None, file=None, sets=sets)
    assert not (home / "runs").exists()
