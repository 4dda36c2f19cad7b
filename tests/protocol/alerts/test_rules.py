"""Files of rules: an error is one line with the file, the rule and what to write, and never an address."""

from __future__ import annotations

from pathlib import Path

import pytest

from esper_overwatch.protocol.alerts.condition import Condition
from esper_overwatch.protocol.alerts.rules import AlertRulesError, Rule, read_rules

from .conftest import WriteRules

GOOD = """
[alerts.diverged]
when = "loss is nan"
webhook = "https://hooks.example.com/services/T0/s3cret"
shape = "slack"
command = ["notify-send", "esper"]
run = "stop"

[alerts.quiet]
when = "silent"
run = "pause"
"""


def test_rules_are_read_from_the_users_file(
    home: Path, monkeypatch: pytest.MonkeyPatch, write_rules: WriteRules
) -> None:
    assert read_rules() == (), "none is there"
    path = write_rules(GOOD)
    expected = (
        Rule(
            name="diverged",
            when=Condition("loss", "is", "nan"),
            webhook="https://hooks.example.com/services/T0/s3cret",
            shape="slack",
            command=("notify-send", "esper"),
            run="stop",
        ),
        Rule(name="quiet", when=Condition("silent"), run="pause"),
    )
    assert read_rules(path) == expected
    usual = home.parent / "config" / "esper" / "alerts.toml"
    usual.parent.mkdir(parents=True)
    usual.write_text(GOOD)
    assert read_rules() == expected
    monkeypatch.setenv("ESPER_ALERTS_FILE", str(path.with_name("other.toml")))
    with pytest.raises(AlertRulesError, match=r"other\.toml: is not there"):
        read_rules()


@pytest.mark.parametrize(
    ("rule", "told"),
    [
        ("", "has no condition; write when = "),
        ("when = 3\nrun = 'stop'", "when: must be text, as in: when = "),
        ("when = 'loss i nan'\nrun = 'stop'", "when: after 'loss' stands 'i': write is,"),
        ("when = 'silent'", "does nothing; add webhook, command or run"),
        ("when = 'silent'\nrun = 'halt'", "run: 'halt': must be pause or stop"),
        ("when = 'silent'\nhook = 'x'", "unknown key 'hook'; there are when, webhook, shape, command, run"),
        ("when = 'silent'\nrun = 'stop'\nshape = 'slack'", "shape goes with webhook"),
        (
            "when = 'silent'\nwebhook = 'https://h/x'\nshape = 'teams'",
            "shape: 'teams': must be json or slack",
        ),
        ("when = 'silent'\ncommand = 'rm'", "command: must be a list of texts, the program first"),
        *(
            (f"when = 'silent'\nwebhook = '{address}'", "webhook: must ")
            for address in (
                "ftp://host/s3cret",
                "file:///etc/s3cret",
                "//host/s3cret",
                "https://",
                "https://host:port/s3cret",
                "https://me:s3cret@host/",
                "https://host/s3cret with space",
                "https://host/#s3cret",
                "s3cret",
            )
        ),
    ],
)
def test_error_names_file_rule_and_remedy(rule: str, told: str, write_rules: WriteRules) -> None:
    path = write_rules(f"[alerts.mine]\n{rule}\n")
    with pytest.raises(AlertRulesError) as error:
        read_rules(path)
    assert str(error.value).startswith(f"{path}: alerts.mine: {told}")
    assert str(error.value).isprintable()
    assert "s3cret" not in str(error.value)
    assert error.value.exit_code == 9


@pytest.mark.parametrize(
    "text", ["[alert.x]\nwhen = 'silent'", "alerts = 3", "[alerts]\nx = 3", "[alerts", "\0"]
)
def test_what_is_no_table_of_rules_is_refused(text: str, write_rules: WriteRules) -> None:
    path = write_rules(text)
    with pytest.raises(AlertRulesError) as error:
        read_rules(path)
    assert str(error.value).startswith(f"{path}: ")
    assert str(error.value).isprintable()
