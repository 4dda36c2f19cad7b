"""Reads the configuration from its five sources; errors name key, value and what is allowed in one line.

Order of precedence: defaults < saved configuration of a resumed run < `--preset NAME` < `--config file.toml`
< `ESPER_*` environment < `--set key=value`. Keys are dotted paths (`ppo.learning_rate`); the environment
spells them `ESPER_PPO_LEARNING_RATE`.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
from msgspec import inspect as mi

from esper_overwatch.protocol.codec.addresses import parse_host_port
from esper_overwatch.protocol.codec.text import is_utf8
from esper_overwatch.protocol.errors import BadName, EsperError

from . import presets
from .anomaly_options import configured_thresholds
from .idle_options import unmet_needs, value_of
from .schema import Config

ENV_PREFIX = "ESPER_"
NOT_OPTIONS = frozenset({"ESPER_HOME", "ESPER_LEASE", "ESPER_REMOTE_DAEMON"})
"""Variables of the environment that are not options of a run."""


class ConfigError(EsperError):
    """A key, a value or a file of the configuration is wrong; the message names all three."""

    exit_code = 9


DEFAULT, TASK, SAVED = "default", "task", "saved"
"""Sources of values that nobody gave for this start; the others are `preset NAME`, `file PATH`,
`environment VARIABLE` and `--set`. SAVED stands for those of a run that did not record its sources."""
_ORDER = ("preset", "file", "environment", "--set")
"""First words of the sources of a start, the later ones win."""


@dataclass(frozen=True)
class SourcedConfig:
    """A configuration, and where each value came from."""

    config: Config
    sources: Mapping[str, str]
    """Source of each option, by key."""

    def is_open(self, key: str) -> bool:
        """True if nobody chose the value, so that the task may bring its own."""
        return self.sources[key] in (DEFAULT, TASK)

    def value(self, key: str) -> Any:
        """Value of an option."""
        return value_of(self.config, key)

    def with_task_value(self, key: str, value: Any) -> SourcedConfig:
        """Set an option to the task's value."""
        return self.with_value(key, value, TASK)

    def with_value(self, key: str, value: Any, source: str) -> SourcedConfig:
        """Set an option to a checked value from `source`."""
        tree = msgspec.to_builtins(self.config)
        *path, leaf = key.split(".")
        node = tree
        for part in path:
            node = node[part]
        node[leaf] = value
        return SourcedConfig(msgspec.convert(tree, Config), {**self.sources, key: source})


class Option(msgspec.Struct, frozen=True, kw_only=True):
    """One leaf of the tree, as help texts and messages need it."""

    key: str
    type: Any
    default: Any
    description: str
    allowed: str

    @property
    def variable(self) -> str:
        return ENV_PREFIX + self.key.replace(".", "_").upper()


def _unwrap(info: mi.Type) -> tuple[mi.Type, str]:
    """The bare type and the description that Annotated metadata gave it."""
    if isinstance(info, mi.Metadata):
        return info.type, (info.extra_json_schema or {}).get("description", "")
    return info, ""


def _allowed(info: mi.Type) -> str:
    """Describe the values that this type takes."""
    bare, _ = _unwrap(info)
    if isinstance(bare, mi.LiteralType):
        return "one of " + ", ".join(map(str, bare.values))
    if isinstance(bare, mi.IntType | mi.FloatType):
        noun = "an integer" if isinstance(bare, mi.IntType) else "a number"
        low = "" if bare.ge is None else f" from {bare.ge}"
        high = "" if bare.le is None else f" to {bare.le}"
        return noun + low + high
    if isinstance(bare, mi.VarTupleType):
        least, most = bare.min_length or 0, bare.max_length or "any number of"
        span = f"{least} values" if least == most else f"{least} to {most} values"
        return f"a list of {span}, each {_allowed(bare.item_type)}"
    if isinstance(bare, mi.BoolType):
        return "true or false"
    if isinstance(bare, mi.StrType):
        return f"text matching {bare.pattern}" if bare.pattern else "text"
    raise AssertionError(f"no words for {bare}")


def options() -> dict[str, Option]:
    """Every leaf of `Config` by its dotted key, in the order of the tree."""
    found: dict[str, Option] = {}

    def walk(struct: type[msgspec.Struct], prefix: str) -> None:
        defaults = struct()
        hints = msgspec.structs.fields(struct)
        for field in hints:
            key = prefix + field.name
            info = mi.type_info(field.type)
            if isinstance(info, mi.StructType):
                walk(info.cls, key + ".")
                continue
            bare, description = _unwrap(info)
            found[key] = Option(
                key=key,
                type=field.type,
                default=getattr(defaults, field.name),
                description=description,
                allowed=_allowed(bare),
            )

    walk(Config, "")
    return found


OPTIONS = options()


def _unknown(key: str, source: str) -> ConfigError:
    same_leaf = [k for k in OPTIONS if k.rpartition(".")[2] == key.rpartition(".")[2]]
    alike = difflib.get_close_matches(key, OPTIONS, n=2, cutoff=0.55)
    near = " or ".join(list(dict.fromkeys(same_leaf + alike))[:3])
    hint = f"; did you mean {near}?" if near else "; `esper-daemon options --all` lists them"
    return ConfigError(f"{source}: unknown key {key}{hint}")


def convert(key: str, value: Any, source: str) -> Any:
    """The value as the option's type, or an error that names key, value and what is allowed."""
    option = OPTIONS.get(key)
    if option is None:
        raise _unknown(key, source)
    textual = isinstance(value, str)
    if textual and not is_utf8(value):
        raise ConfigError(
            f"{source}: {key} = {value!r}: is not UTF-8; spell it, or rename the file, in UTF-8"
        )
    if textual and isinstance(_unwrap(mi.type_info(option.type))[0], mi.VarTupleType):
        value = [part.strip() for part in value.strip("[]() ").split(",") if part.strip()]
    try:
        return msgspec.convert(value, option.type, strict=not textual and not isinstance(value, list))
    except msgspec.ValidationError:
        raise ConfigError(f"{source}: {key} = {value!r}: must be {option.allowed}") from None


def _flatten(table: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    for name, value in table.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _from_file(path: Path) -> dict[str, Any]:
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: is not TOML: {error}") from None
    return dict(_flatten(table))


def variables() -> frozenset[str]:
    """Every variable of the environment that means something to a run."""
    return NOT_OPTIONS | {option.variable for option in OPTIONS.values()}


def _from_environment(environ: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    by_variable = {option.variable: key for key, option in OPTIONS.items()}
    values: dict[str, tuple[str, str]] = {}
    for name, text in environ.items():
        if not name.startswith(ENV_PREFIX) or name in NOT_OPTIONS:
            continue
        if name not in by_variable:
            near = difflib.get_close_matches(name, by_variable, n=1, cutoff=0.5)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise ConfigError(f"environment: unknown variable {name}{hint}")
        values[by_variable[name]] = (text, name)
    return values


def load_sourced(
    *,
    preset: str | None = None,
    file: Path | None = None,
    environ: Mapping[str, str] | None = None,
    sets: Iterable[str] = (),
    saved: Mapping[str, Any] | None = None,
    saved_sources: Mapping[str, str] | None = None,
    varied: Collection[str] = (),
) -> SourcedConfig:
    """Merge the sources into one checked configuration that knows where its values came from.

    Args:
        preset: name of one of `presets`, or None.
        file: a TOML file, or None.
        environ: the process environment; only `ESPER_*` is read.
        sets: `key=value` texts, the later ones win.
        saved: the nested configuration of a run that is resumed.
        saved_sources: by key, where the values of `saved` came from, as far as that is known.
        varied: options that will have other values, too; what needs one of these is not refused as idle.

    Raises:
        ConfigError: an unknown key, a value out of range, a contradiction between values, or an option
            that was given and has no effect.
        UnknownPreset: no preset has that name.
    """
    flat: dict[str, Any] = dict(_flatten(saved or {}))
    sources = dict.fromkeys(OPTIONS, DEFAULT) | {key: (saved_sources or {}).get(key, SAVED) for key in flat}
    given: dict[str, str] = {}

    def give(key: str, value: Any, source: str, where: str) -> None:
        flat[key] = convert(key, value, where)
        sources[key] = given[key] = source

    if preset is not None:
        path = presets.path(preset)
        for key, value in _from_file(path).items():
            give(key, value, f"preset {preset}", str(path))
    before = dict(flat)
    if file is not None:
        for key, value in _from_file(file).items():
            give(key, value, f"file {file}", str(file))
    for key, (text, variable) in _from_environment(environ or {}).items():
        give(key, text, f"environment {variable}", f"environment {variable}")
    for item in sets:
        key, equals, text = item.partition("=")
        if not equals:
            raise ConfigError(f"--set {item}: write it as key=value")
        give(key.strip(), text.strip(), "--set", "--set")
    sourced = SourcedConfig(_nest(flat), {key: sources[key] for key in OPTIONS})
    _check_task(sourced.config, sources)
    _check_combinations(sourced.config)
    _check_limits(sourced.config)
    _check_idle(sourced, before, given, varied)
    return sourced


def load(
    *,
    preset: str | None = None,
    file: Path | None = None,
    environ: Mapping[str, str] | None = None,
    sets: Iterable[str] = (),
    saved: Mapping[str, Any] | None = None,
) -> Config:
    """`load_sourced` without the sources."""
    return load_sourced(preset=preset, file=file, environ=environ, sets=sets, saved=saved).config


def _nest(flat: Mapping[str, Any]) -> Config:
    nested: dict[str, Any] = {}
    for key, value in flat.items():
        *path, leaf = key.split(".")
        node = nested
        for part in path:
            node = node.setdefault(part, {})
        node[leaf] = value
    try:
        return msgspec.convert(nested, Config)
    except msgspec.ValidationError as error:
        raise ConfigError(f"saved configuration: {error}") from None


def _check_task(config: Config, sources: Mapping[str, str]) -> None:
    """A dataset named beside a mixture would have no effect; a preset's gives way to a mixture."""
    source = sources["task.dataset"]
    yields = source.startswith("preset ") and source != sources["task.mixture"]
    if config.task.mixture and source not in (DEFAULT, TASK, SAVED) and not yields:
        names = ",".join(config.task.mixture)
        raise ConfigError(
            f"task.dataset = {config.task.dataset}: hosts learn task.mixture = {names}; "
            "leave it out, or set task.mixture to nothing (--set task.mixture=)"
        )


def _check_idle(
    sourced: SourcedConfig, before: Mapping[str, Any], given: Mapping[str, str], varied: Collection[str]
) -> None:
    """Nobody gives an option without effect; what a later source has made idle gives way.

    Args:
        sourced: the merged configuration.
        before: values of the saved configuration and the preset, which may be idle.
        given: by key, the sources of this start's values.
        varied: see `load_sourced`.
    """
    for key, need in unmet_needs(sourced.config):
        value, switch = sourced.value(key), need.switch
        quiet = [OPTIONS[key].default, *([convert(key, before[key], "saved")] if key in before else [])]
        if value in quiet or switch in varied or _rank(given.get(key)) < _rank(given.get(switch)):
            continue
        raise ConfigError(
            f"{key} ({sourced.sources[key]}): is for {need.words}, and {switch} is "
            f"{_spelt(sourced.value(switch))}; leave it out, or set {switch} too"
        )


def _rank(source: str | None) -> int:
    """Precedence of a source; later ones win."""
    return -1 if source is None else _ORDER.index(source.partition(" ")[0])


def _spelt(value: Any) -> str:
    """A value as `--set` takes it."""
    if isinstance(value, tuple):
        return ",".join(map(str, value)) or "empty"
    return str(value).lower() if isinstance(value, bool) else str(value)


def drop_idle(saved: Mapping[str, Any], sets: Iterable[str]) -> list[str]:
    """Select the `key=value` texts that have an effect on a saved configuration, applied all together.

    Args:
        saved: the nested configuration.
        sets: checked before.
    """
    pairs = [(key.strip(), text.strip(), item) for item in sets for key, _, text in [item.partition("=")]]
    given = {key: convert(key, text, "--set") for key, text, _ in pairs}
    idle = {key for key, _ in unmet_needs(_nest({**dict(_flatten(saved)), **given}))}
    return [item for key, _, item in pairs if key not in idle]


def _check_combinations(config: Config) -> None:
    named = {
        "seeds.blueprints": config.seeds.blueprints,
        "task.augment": config.task.augment,
        "task.mixture": config.task.mixture,
        "profiler.rounds": config.profiler.rounds,
        "evaluation.rivals": config.evaluation.rivals,
    }
    for key, values in named.items():
        twice = next((value for i, value in enumerate(values) if value in values[:i]), None)
        if twice is not None:
            raise ConfigError(f"{key} = {', '.join(map(str, values))}: {twice} is named twice")
    if config.task.mixture and (config.task.shared_batches or config.task.data_dir):
        key = "task.shared_batches" if config.task.shared_batches else "task.data_dir"
        raise ConfigError(
            f"{key}: the envs of task.mixture learn different images; leave it out, or task.mixture"
        )
    _check_policy(config)
    if config.policy.kind == "ppo" and config.ppo.minibatches > config.envs.count:
        raise ConfigError(
            f"ppo.minibatches = {config.ppo.minibatches}: must not exceed envs.count = {config.envs.count}"
        )
    if config.ppo.schedule != "constant" and config.rounds < 1:
        raise ConfigError(
            f"ppo.schedule = {config.ppo.schedule}: needs rounds, and rounds = {config.rounds}; set rounds"
        )
    for key in ("host.warmup_epochs", "seeds.min_training_epochs"):
        if (epochs := value_of(config, key)) >= config.episode_epochs:
            raise ConfigError(f"{key} = {epochs}: must be below episode_epochs = {config.episode_epochs}")
    if config.governor.learnt_loss_ratio >= config.governor.forgotten_loss_ratio:
        raise ConfigError(
            f"governor.learnt_loss_ratio = {config.governor.learnt_loss_ratio}: "
            f"must be below governor.forgotten_loss_ratio = {config.governor.forgotten_loss_ratio}"
        )
    if config.gates.min_gradient_norm > config.gates.max_gradient_norm:
        raise ConfigError(
            f"gates.min_gradient_norm = {config.gates.min_gradient_norm}: "
            f"must not exceed gates.max_gradient_norm = {config.gates.max_gradient_norm}"
        )
    _check_addresses(config)


def _check_addresses(config: Config) -> None:
    """Check that every address to connect to is one; the start shows whether it can be bound."""
    try:
        if config.metrics.listen:
            parse_host_port(config.metrics.listen)
    except BadName as error:
        raise ConfigError(f"metrics.listen: {error}") from None


def _check_policy(config: Config) -> None:
    """Check that the way the policy acts fits with the episode, and with whether it learns."""
    epochs, envs = config.policy.decision_epochs, config.envs
    if any(before >= after for before, after in pairwise((*epochs, config.episode_epochs))):
        raise ConfigError(
            f"policy.decision_epochs = {', '.join(map(str, epochs))}: must ascend, and stay below "
            f"episode_epochs = {config.episode_epochs}"
        )
    if envs.count % envs.copies:
        raise ConfigError(f"envs.copies = {envs.copies}: must divide envs.count = {envs.count}")
    if config.policy.greedy and config.policy.learn:
        raise ConfigError(
            "policy.greedy = true: a policy that always takes the same action learns nothing of the others; "
            "set policy.learn=false"
        )
    if config.policy.temperature != 1.0 and (config.policy.learn or config.policy.greedy):
        remedy = (
            "set policy.learn=false" if config.policy.learn else "leave out policy.greedy, which draws none"
        )
        raise ConfigError(
            f"policy.temperature = {config.policy.temperature:g}: is for actions that a policy draws without "
            f"learning of them; {remedy}"
        )


def _check_limits(config: Config) -> None:
    """Check that critical limits are at least as far as the warnings."""
    for signal, threshold in configured_thresholds(config.anomalies).items():
        warning, critical = threshold.warning, threshold.critical
        if critical is not None and ((critical > warning) if threshold.low else (critical < warning)):
            side = "exceed" if threshold.low else "be below"
            raise ConfigError(
                f"anomalies.{signal} = {warning:g}, {critical:g}: "
                f"the second limit, critical, must not {side} the first, warning"
            )


def _idle_values(config: Config) -> set[str]:
    """Options without effect that a file would be refused for."""
    idle = {key for key, _ in unmet_needs(config) if value_of(config, key) != OPTIONS[key].default}
    return idle | {"task.dataset"} if config.task.mixture else idle


def to_toml(config: Config, sources: Mapping[str, str] | None = None) -> str:
    """The configuration as a TOML file that `--config` reads back to the same values.

    What is idle becomes a comment: it has no effect, and whoever gives it is refused.

    Args:
        sources: with them, what nobody has chosen becomes a comment, so that tasks still bring their own.
    """

    def literal(value: Any) -> str:
        if isinstance(value, bool):
            return str(value).lower()
        if isinstance(value, list | tuple):
            return "[" + ", ".join(map(literal, value)) + "]"
        return msgspec.json.encode(value).decode()

    def line(prefix: str, key: str, value: Any) -> str:
        source = sources[prefix + key] if sources else SAVED
        text = f"{key} = {literal(value)}"
        if source not in (DEFAULT, TASK) and prefix + key in idle:
            source = "no effect"
        return f"# {text}  # {source}" if source in (DEFAULT, TASK, "no effect") else text

    tree, idle = msgspec.to_builtins(config), _idle_values(config)
    lines = [line("", key, value) for key, value in tree.items() if not isinstance(value, dict)]
    for section, table in tree.items():
        if isinstance(table, dict):
            lines += ["", f"[{section}]"]
            lines += [line(f"{section}.", key, value) for key, value in table.items()]
    return "\n".join(lines) + "\n"
