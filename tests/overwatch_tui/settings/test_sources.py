"""Settings from their four sources, and what is refused."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from esper_overwatch.overwatch_tui.cli import main
from esper_overwatch.overwatch_tui.keys import ACTIONS, Key
from esper_overwatch.overwatch_tui.settings.keymap import key_name, remap_keys
from esper_overwatch.overwatch_tui.settings.sources import read_settings, settings_path, write_setting
from esper_overwatch.overwatch_tui.settings.table import SETTINGS, BadSetting, format_value


def _file(folder: Path, text: str) -> Path:
    path = folder / "tui.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_command_line_wins_over_environment_over_file(tmp_path: Path) -> None:
    path = _file(tmp_path, 'theme = "light"\nrefresh = 2\nsort = "drift"\nmouse = true\n')
    environ = {"ESPER_TUI_REFRESH": "4", "ESPER_TUI_SORT": "env", "HOME": "/"}
    found = read_settings(environ, {"sort": "return", "view": None}, path).chosen
    assert found["theme"] == ("light", "file")
    assert found["refresh"] == (4.0, "ESPER_TUI_REFRESH")
    assert found["sort"] == ("return", "command line")
    assert found["view"] == ("run", "default")
    assert found["mouse"] == (True, "file")


def test_the_file_is_where_xdg_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert settings_path() == tmp_path / "esper" / "tui.toml"
    assert read_settings({})["theme"] == "auto", "a file that is not there is an empty one"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('theme = "drak"', "theme = 'drak': must be auto, dark, light"),
        ('theme = "drak"', "did you mean dark?"),
        ('thme = "dark"', "unknown setting thme; did you mean theme?"),
        ("theme = 3", "theme = 3: must be"),
        ("theme = true", "theme = True: must be"),
        ("refresh = 3", "refresh = 3: must be 0.5, 1, 2 or 4"),
        ("refresh = true", "refresh = True: must be"),
        ("mouse = 1", "mouse = 1: must be false or true"),
        ('mouse = "yes"', "mouse = 'yes': must be false or true"),
        ("theme", "is not TOML"),
        ('theme = "dark"\ntheme = "light"', "is not TOML"),
        ("keys = 3", "keys must be a table"),
        ('[keys]\nfreze = "f5"', "unknown action freze; did you mean freeze?"),
        ('[keys]\nfreeze = "spce"', "keys.freeze = 'spce': no such key; did you mean space?"),
        ('[keys]\nfreeze = "q"', "q is both"),
        ('[keys]\nfreeze = "7"', "digits show the views"),
        ("[keys]\nfreeze = []", "must be a key"),
        ("[keys]\nfreeze = 5", "must be a key"),
        ('[keys]\nfreeze = "hyper+x"', "no such key"),
        ('[themes]\nname = "dark"', "unknown setting themes; did you mean theme?"),
    ],
)
def test_bad_file_is_one_line_with_exit_code_two(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "esper").mkdir()
    path = _file(tmp_path / "esper", text)
    result = CliRunner().invoke(main, ["--once"], env={"XDG_CONFIG_HOME": str(tmp_path)})
    assert result.exit_code == 2
    assert words in result.output
    assert str(path) in result.output
    assert result.output.count("\n") == 1
    assert result.output.startswith("esper-tui: ")


@pytest.mark.parametrize(
    ("variable", "text", "words"),
    [
        ("ESPER_TUI_THEME", "x", "ESPER_TUI_THEME: theme = 'x': must be"),
        ("ESPER_TUI_REFRESH", "fast", "ESPER_TUI_REFRESH: refresh = 'fast': must be"),
        ("ESPER_TUI_MOUSE", "maybe", "ESPER_TUI_MOUSE: mouse = 'maybe': must be"),
        ("ESPER_TUI_THEMES", "dark", "unknown variable ESPER_TUI_THEMES; did you mean ESPER_TUI_THEME?"),
    ],
)
def test_bad_variable_is_named(variable: str, text: str, words: str) -> None:
    result = CliRunner().invoke(main, ["--once"], env={variable: text})
    assert result.exit_code == 2
    assert words in result.output


def test_a_folder_in_place_of_the_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(BadSetting, match="cannot be read"):
        read_settings({}, path=tmp_path)


@given(st.data())
def test_any_value_survives_the_way_through_the_file(data: st.DataObject) -> None:
    import tempfile

    name = data.draw(st.sampled_from(sorted(SETTINGS)))
    value = data.draw(st.sampled_from(SETTINGS[name].choices))
    with tempfile.TemporaryDirectory() as folder:
        path = _file(Path(folder), '# mine\nsort = "env"  # why\n\n[keys]\nfreeze = "f5"\n')
        write_setting(path, name, value)
        assert read_settings({}, path=path).chosen[name] == (value, "file")
        assert "# mine" in path.read_text()
        assert {key.name: key.keys for key in read_settings({}, path=path).keys}["freeze"] == "f5"
        write_setting(path, name, None)
        assert read_settings({}, path=path).chosen[name] == (SETTINGS[name].default, "default")
    assert SETTINGS[name].parse(format_value(value), "here") == value


@given(st.text(max_size=20), st.text(max_size=20))
def test_any_text_is_taken_or_refused_in_one_line(name: str, value: str) -> None:
    for environ in ({f"ESPER_TUI_{name}": value}, {f"ESPER_TUI_{n.upper()}": value for n in SETTINGS}):
        try:
            assert set(read_settings(environ).chosen) == set(SETTINGS)
        except BadSetting as error:
            said = str(error)
            assert "ESPER_TUI_" in said


def test_link_to_the_file_stays_a_link(tmp_path: Path) -> None:
    real = _file(tmp_path, 'theme = "dark"\n')
    link = tmp_path / "link.toml"
    link.symlink_to(real)
    write_setting(link, "theme", "light")
    assert link.is_symlink()
    assert real.read_text() == 'theme = "light"\n'


def test_disk_that_refuses_a_setting_is_told(tmp_path: Path) -> None:
    path = _file(tmp_path, 'theme = "dark"\n')
    (tmp_path / f".tui.toml.{os.getpid()}").mkdir()  # where the new file is written
    with pytest.raises(BadSetting, match=r"tui\.toml: cannot be written: "):
        write_setting(path, "theme", "light")
    assert path.read_text() == 'theme = "dark"\n'


def test_every_action_has_a_name_to_write() -> None:
    names = [key.name for key in ACTIONS]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch("[a-z]+(_[a-z]+)*", name) for name in names), names
    assert {"freeze", "down", "next_incident", "escalate", "next_panel"} <= set(names)


def test_every_usual_key_can_be_written() -> None:
    for key in ACTIONS:
        for name in filter(None, key.keys.split(",")):
            assert key_name(name) == name


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("?", "question_mark"),
        ("/", "slash"),
        (",", "comma"),
        (" ", "space"),
        ("Ctrl+T", "ctrl+t"),
        ("F12", "f12"),
        ("J", "J"),
        ("-", "minus"),
        ("", None),
        ("f99", None),
        ("ctrl+", None),
        ("\x07", None),
    ],
)
def test_keys_have_the_names_of_textual(text: str, name: str | None) -> None:
    assert key_name(text) == name


def test_remapped_key_leaves_its_usual_one_to_another() -> None:
    keys = {key.name: key for key in remap_keys({"freeze": ["f5", "Z"], "down": "space"}, "here")}
    assert (keys["freeze"].keys, keys["freeze"].shown) == ("f5,Z", "F5 Z")
    assert keys["down"].keys == "space"
    assert isinstance(keys["quit" if "quit" in keys else "leave"], Key)


def test_quiet_hours_are_any_that_can_be_read(tmp_path: Path) -> None:
    path = _file(tmp_path, 'quiet = "21:30-06:15"\n')
    assert read_settings({}, path=path).chosen["quiet"] == ("21:30-06:15", "file")
    assert read_settings({"ESPER_TUI_QUIET": "off"}, {"quiet": "1:00-2:00"})["quiet"] == "1:00-2:00"
    with pytest.raises(BadSetting, match=r"quiet = 'night': must be off, or such as 22:00-07:00"):
        read_settings({"ESPER_TUI_QUIET": "night"})
    with pytest.raises(BadSetting, match="quiet = 22: must be off"):
        read_settings({}, path=_file(tmp_path, "quiet = 22\n"))
