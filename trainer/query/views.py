"""The views that SQL is asked of: name, description, and their SQL over the tables of `events`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import NamedTuple

from esper_overwatch.protocol.messages.events import EVENTS, RoundFinished
from esper_overwatch.protocol.messages.vocabulary import (
    ALPHA_SPEEDS,
    ALPHA_TARGETS,
    GATE_OF_OP,
    TEMPOS,
    WITH_SEED,
    Curve,
    Stage,
    Style,
)

_ENVELOPE = "boot_number, place, seq, ctx_round, ctx_epoch, ctx_level, ctx_env, ctx_rank"


class View(NamedTuple):
    """One view."""

    description: str
    sql: str


def _names(values: Sequence[object]) -> str:
    return "[" + ", ".join(repr(value) for value in values) + "]"


def _all_of(type_: str, place: str = "ts, ctx_round AS round, ctx_epoch AS epoch", other: str = "") -> str:
    """Every field of an event type, a row per event."""
    skipped = ", ".join(name for name in (_ENVELOPE, "ts", other) if name)
    return f'SELECT {place}, * EXCLUDE ({skipped}) FROM events."{type_}" ORDER BY place'


def _per_env(columns: Sequence[str], place: str = "ts, ctx_round AS round, ctx_epoch AS epoch") -> str:
    """Columns of `epoch` with one value per env."""
    unnested = ", ".join(f"unnest({name}) AS {name}" for name in columns)
    return f"SELECT {place}, unnest(range(len(op))) AS env, {unnested} FROM events.epoch"


_SCALARS = ("float", "int", "bool", "str")
_ROUND = ", ".join(f.name for f in fields(RoundFinished) if str(f.type).removesuffix(" | None") in _SCALARS)
_PER_ENV = (
    "train_loss",
    "train_accuracy",
    "val_loss",
    "val_accuracy",
    "reward",
    "episode_return",
    "host_grad_norm",
    "host_health",
    "parameters",
    "loss_scale",
    "skipped_steps",
)
_PER_SLOT = (
    "stage",
    "epochs_in_stage",
    "alpha",
    "blueprint",
    "contribution",
    "seed_grad_norm",
    "seed_health",
    "seed_grad_ratio",
    "interaction",
)
_PER_LAYER = tuple(f.name for f in fields(EVENTS["layers"].cls) if f.name != "layer")
_CHOICES = {
    "blueprint": "blueprints",
    "style": _names([style.name for style in Style]),
    "tempo": _names(TEMPOS),
    "alpha_target": _names(ALPHA_TARGETS) + "::DOUBLE[]",
    "alpha_speed": _names(ALPHA_SPEEDS),
    "alpha_curve": _names([curve.name for curve in Curve]),
}
"""SQL of the meaning of each of a head's codes, by head."""
_DECISIONS = f"""
WITH chosen AS (
    SELECT place, boot_number, ctx_round AS round, ctx_epoch AS epoch, unnest(range(len(op))) AS env,
        unnest(op) AS op, unnest(action_slot) AS slot, unnest(action) AS action, unnest(executed) AS executed,
        {", ".join(f"unnest(heads['{head}']) AS {head}" for head in _CHOICES)},
        unnest(probability) AS probability, unnest(value) AS value, unnest(op_probability) AS by_op
    FROM events.epoch
), judged AS (
    SELECT *, list_max(others) AS most FROM (
        SELECT *, [CASE WHEN i <> op THEN by_op[i + 1] END FOR i IN range(len(by_op))] AS others FROM chosen
    )
)
SELECT round, epoch, env, ops[op + 1] AS op, slots[slot + 1] AS slot, action, executed,
    {", ".join(f"({values})[{head} + 1] AS {head}" for head, values in _CHOICES.items())},
    probability, by_op[op + 1] AS op_probability, value,
    CASE WHEN most > 0 THEN ops[list_position(others, most)] END AS alternative,
    CASE WHEN most > 0 THEN most END AS alternative_probability
FROM judged LEFT JOIN boots_ USING (boot_number)
"""
_GATE_OF_OP = " ".join(f"WHEN '{op.name}' THEN '{gate}'" for op, gate in GATE_OF_OP.items())
_GATES = f"""
WITH env AS (
    SELECT boot_number, ctx_round AS round, ctx_epoch AS epoch, unnest(range(len(op))) AS env,
        unnest(op) AS op, unnest(action_slot) AS action_slot, unnest(action) AS action,
        unnest(gates_asked) AS gates_asked, unnest(gates_passed) AS gates_passed
    FROM events.epoch WHERE len(gates_asked) > 0
), slot AS (
    SELECT * EXCLUDE (gates_asked, gates_passed), unnest(range(len(gates_asked))) AS slot,
        unnest(gates_asked) AS asked, unnest(gates_passed) AS passed
    FROM env
), gate AS (
    SELECT *, unnest(range(8)) AS number FROM slot WHERE asked > 0
)
SELECT round, epoch, env, slots[slot + 1] AS slot, 'G' || number AS gate,
    passed >> number & 1 = 1 AS passed,
    CASE WHEN slot = action_slot AND 'G' || number = CASE ops[op + 1] {_GATE_OF_OP} END
        THEN action END AS action
FROM gate LEFT JOIN boots_ USING (boot_number) WHERE asked >> number & 1 = 1
"""
_SLOTS = f"""
WITH env AS ({_per_env(_PER_SLOT, "boot_number, ctx_round AS round, ctx_epoch AS epoch")}), slot AS (
    SELECT boot_number, round, epoch, env, unnest(range(len(stage))) AS slot,
        {", ".join(f"unnest({name}) AS {name}" for name in _PER_SLOT)}
    FROM env
)
SELECT round, epoch, env, slots[slot + 1] AS slot, stages[stage + 1] AS stage, epochs_in_stage, alpha,
    blueprints[blueprint + 1] AS blueprint, {", ".join(_PER_SLOT[4:])}
FROM slot LEFT JOIN boots_ USING (boot_number)
"""
_SHAPLEY = """
WITH env AS (
    SELECT boot_number, ctx_round AS round, unnest(range(len(coalitions))) AS env, unnest(value) AS value,
        unnest(half_width) AS half_width, unnest(coalitions) AS coalitions
    FROM events."shapley.computed"
), slot AS (
    SELECT boot_number, round, env, coalitions, unnest(range(len(value))) AS slot, unnest(value) AS value,
        unnest(half_width) AS half_width
    FROM env
)
SELECT round, env, slots[slot + 1] AS slot, value, half_width, coalitions
FROM slot LEFT JOIN boots_ USING (boot_number) WHERE value IS NOT NULL
"""
_INTERACTIONS = """
WITH env AS (
    SELECT boot_number, ctx_round AS round, unnest(range(len(interaction))) AS env,
        unnest(interaction) AS rows_
    FROM events."shapley.computed"
), slot AS (
    SELECT boot_number, round, env, unnest(range(len(rows_))) AS slot, unnest(rows_) AS row_ FROM env
), pair AS (
    SELECT boot_number, round, env, slot, unnest(range(len(row_))) AS other, unnest(row_) AS interaction
    FROM slot
)
SELECT round, env, slots[slot + 1] AS slot, slots[other + 1] AS other, interaction
FROM pair LEFT JOIN boots_ USING (boot_number) WHERE interaction IS NOT NULL AND slot < other
"""
_OBSERVATIONS = """
SELECT round, one.key AS feature_group, one.value['mean'] AS mean, one.value['std'] AS std,
    one.value['outliers'] AS outliers, one.value['clipped'] AS clipped, one.value['missing'] AS missing,
    one.value['drift'] AS drift
FROM (SELECT ctx_round AS round, unnest(map_entries(observation_groups)) AS one FROM events."ppo.update")
"""
_EVALUATIONS = """
SELECT ts, ctx_round AS round, policy, is_rival, hosts, return_mean, accuracy_mean, test_accuracy_mean,
    added_parameters_mean, fossilized_mean, seconds, is_best, return_components, op_fraction
FROM events."evaluation.finished" ORDER BY place
"""
_EVALUATION_LEADS = """
SELECT round, policy, one.key AS rival, one.value['mean'] AS lead, one.value['low'] AS low,
    one.value['high'] AS high
FROM (SELECT ctx_round AS round, policy, unnest(map_entries(leads)) AS one FROM events."evaluation.finished")
"""
_EVALUATION_TASKS = """
SELECT round, policy, one.key AS task, one.value['return'] AS return_mean,
    one.value['accuracy'] AS accuracy_mean, one.value['test_accuracy'] AS test_accuracy_mean,
    one.value['added_parameters'] AS added_parameters_mean,
    one.value['fossilized'] AS fossilized_mean
FROM (SELECT ctx_round AS round, policy, unnest(map_entries(tasks)) AS one FROM events."evaluation.finished")
"""
_LAYERS = f"""
WITH layer AS (
    SELECT ctx_round AS round, ctx_epoch AS epoch, unnest(layer) AS layer,
        {", ".join(f"unnest({name}) AS {name}" for name in _PER_LAYER)}
    FROM events.layers
), env AS (
    SELECT round, epoch, unnest(range(len(grad_norm))) AS env, layer,
        {", ".join(f"unnest({name}) AS {name}" for name in _PER_LAYER)}
    FROM layer
)
SELECT * FROM env WHERE zero_fraction IS NOT NULL OR activation_rms IS NOT NULL
"""
_PHASES = """
WITH phase AS (
    SELECT ctx_round AS round, ctx_epoch AS epoch, ctx_rank AS rank, unnest(map_entries(phases)) AS phase,
        cpu_phases FROM events.epoch
    UNION ALL
    SELECT ctx_round, ctx_epoch, ctx_rank, unnest(map_entries(phases)), NULL FROM events."rank.epoch"
)
SELECT round, epoch, rank, phase.key AS phase, phase.value AS seconds, cpu_phases[phase.key] AS cpu_seconds
FROM phase
"""
_DRIFT = """
SELECT ts, ctx_round AS round, ctx_epoch AS epoch, unnest(source) AS source, unnest(norm) AS norm,
    unnest(norm_ema) AS norm_ema, unnest(norm_drift) AS norm_drift, unnest(health) AS health,
    unnest(health_ema) AS health_ema, unnest(health_drift) AS health_drift
FROM events.drift
"""
_STAGES = """
SELECT ts, ctx_round AS round, ctx_epoch AS epoch, ctx_env AS env, slot, seed, from_stage, to_stage,
    "by" AS actor, action, command, blueprint, alpha, contribution
FROM events."seed.stage" ORDER BY place
"""
_OF_LIFE = ", ".join(f"'{stage.name}'" for stage in (*WITH_SEED, Stage.PRUNED))
_SEEDS = f"""
WITH ended AS (
    SELECT place, ctx_env AS env, slot, blueprint, ctx_round AS round, born AS germinated_epoch,
        ended AS end_epoch, how AS end_stage, contribution, parameters, seed
    FROM events."seed.ended"
), present AS (
    SELECT min(place) AS place, ctx_env AS env, slot, min_by(blueprint, place) AS blueprint,
        ctx_round AS round, min(ctx_epoch) AS born, max_by(ctx_epoch, place) FILTER (is_own) AS epoch,
        max_by(to_stage, place) FILTER (is_own) AS stage, max(parameters) AS parameters, seed,
        max_by(contribution, place) AS worth
    FROM (
        SELECT *, to_stage IN ({_OF_LIFE}) OR (to_stage = 'DORMANT' AND "by" = 'governor') AS is_own
        FROM events."seed.stage" WHERE seed IS NOT NULL AND ctx_round > {{told}}
    )
    GROUP BY ctx_env, slot, ctx_round, seed
    HAVING bool_or(to_stage = 'GERMINATED' AND "by" <> 'governor')
), measured AS (
    SELECT present.place, max_by(slots.contribution, slots.epoch) AS contribution
    FROM present JOIN slots USING (round, env, slot)
    WHERE slots.round > {{told}} AND slots.epoch > born
        AND (present.stage NOT IN ('PRUNED', 'DORMANT') OR slots.epoch <= present.epoch)
    GROUP BY ALL
), finished AS (
    SELECT ctx_round AS round, max(ctx_epoch) AS last FROM events."round.finished"
    WHERE ctx_round > {{told}} GROUP BY ALL
), untold AS (
    SELECT min(round) AS first, max(round) AS last FROM (
        SELECT ctx_round AS round FROM events."round.finished"
        WHERE germinated > 0 AND ctx_round IN (SELECT ctx_round FROM events."round.started")
            AND ctx_round NOT IN (SELECT round FROM ended UNION ALL SELECT round FROM present)
        UNION ALL
        SELECT ctx_round FROM events."episode.finished"
        WHERE seeds['DORMANT'] > 0 AND ctx_round NOT IN (SELECT round FROM ended)
    ) HAVING count(*) > 0
)
SELECT * EXCLUDE (place) FROM (
    SELECT * FROM ended
    UNION ALL BY NAME
    SELECT present.place, env, slot, blueprint, round, born AS germinated_epoch,
        CASE WHEN stage IN ('FOSSILIZED', 'PRUNED', 'DORMANT') THEN epoch ELSE last END AS end_epoch,
        CASE WHEN end_epoch IS NOT NULL THEN stage END AS end_stage,
        coalesce(contribution, worth) AS contribution, parameters, seed
    FROM present LEFT JOIN measured USING (place) LEFT JOIN finished USING (round)
    UNION ALL BY NAME
    SELECT NULL AS place FROM untold WHERE error(
        'seeds: rounds ' || first || ' to ' || last || ' are of a version that did not tell how seeds ended; '
        'ask episodes or stages'
    ) IS NULL
) ORDER BY round, place
"""
"""Seeds whose end was told, and those of the present round as their newest stages have them; so are those of
a journal of 0.2.0, which has no `seed.ended`, unless rollbacks have undone some or stages name no seed."""
_ANOMALIES = """
SELECT ts, boot, ctx_round AS round, ctx_epoch AS epoch, kind, source, active, value, threshold, count, hint,
    severity, make_timestamp(since) AS since
FROM events.anomaly LEFT JOIN boots_ USING (boot_number) ORDER BY place
"""
_INCIDENTS = """
SELECT id, max_by(active, place) AS open, max_by(severity, place) AS severity, max_by(title, place) AS title,
    max_by(scope, place) AS scope, max_by(kind, place) AS kind, max_by(source, place) AS source,
    make_timestamp(max(since)) AS since, make_timestamp(nullif(max(over), 0)) AS over,
    max_by(value, place) AS value, max_by(threshold, place) AS threshold, max_by(kinds, place) AS kinds,
    max_by(suspect, place) AS suspect, max_by(undo, place) AS undo, min(boot_number) AS boot_number,
    min_by(ctx_round, place) AS round, min_by(ctx_epoch, place) AS epoch
FROM events.incident GROUP BY id ORDER BY min(place)
"""
_EPISODES = """
SELECT ts, ctx_round AS round, ctx_env AS env, total_return, accuracy, test_accuracy, parameters,
    added_parameters, rollbacks, coalesce(list_sum(map_values(seeds)), 0)::BIGINT AS planted,
    coalesce(seeds['FOSSILIZED'], 0) AS fossilized, coalesce(seeds['PRUNED'], 0) AS pruned,
    coalesce(seeds['DORMANT'], 0) AS undone, reward_components, task, instance
FROM events."episode.finished" ORDER BY place
"""
_RUNS = """
SELECT began.ts, began.boot, began.run, began.name, began.kind, began.version, began.torch, began.device,
    began.host, began.pid, began.task, began.policy, began.seed, began.envs, began.ranks, began.rounds,
    began.episode_epochs, began.host_parameters, began.resumed_round, began.tags, began.notes,
    coalesce(changed.config, began.config) AS config,
    began.execution, ended.ts AS ended, ended.reason, ended.exit_code, ended.error
FROM events."run.started" AS began LEFT JOIN events."run.stopped" AS ended USING (boot_number)
    LEFT JOIN (
        SELECT boot_number, max_by(config, place) AS config FROM events."run.config" GROUP BY boot_number
    ) AS changed USING (boot_number)
ORDER BY began.place
"""
_COMMANDS = """
WITH accepted AS (
    SELECT id, min_by(accepted, place) AS entry, min(place) AS place
    FROM events."command.accepted" AS accepted GROUP BY id
), refused AS (
    SELECT id, min_by(refused, place) AS entry, min(place) AS place
    FROM events."command.refused" AS refused GROUP BY id
), done AS (
    SELECT id, min_by(done.seconds, place) AS seconds, min(place) AS place
    FROM events."command.done" AS done GROUP BY id
), failed AS (
    SELECT id, min_by(failed.message, place) AS message, min(place) AS place
    FROM events."command.failed" AS failed GROUP BY id
)
SELECT coalesce(accepted.entry.ts, refused.entry.ts) AS ts, id,
    coalesce(accepted.entry.method, refused.entry.method) AS method,
    coalesce(accepted.entry.client, refused.entry.client) AS client,
    coalesce(accepted.entry.uid, refused.entry.uid) AS uid,
    coalesce(accepted.entry.pid, refused.entry.pid) AS pid,
    accepted.entry.params AS params, accepted.entry.reason AS reason,
    CASE WHEN accepted.id IS NULL THEN 'refused' WHEN done.id IS NOT NULL THEN 'done'
        WHEN failed.id IS NOT NULL THEN 'failed' ELSE 'open' END AS outcome,
    CASE WHEN accepted.id IS NOT NULL THEN done.seconds END AS seconds,
    CASE WHEN accepted.id IS NULL THEN refused.entry.message
        WHEN done.id IS NULL THEN failed.message END AS message
FROM accepted FULL JOIN refused USING (id) LEFT JOIN done USING (id) LEFT JOIN failed USING (id)
ORDER BY least(accepted.place, refused.place)
"""
_CHECKPOINTS = """
SELECT ts, ctx_round AS round, ctx_epoch AS epoch, path, reason, bytes, seconds, command, NULL AS error
FROM events."checkpoint.saved"
UNION ALL
SELECT ts, ctx_round, ctx_epoch, path, reason, NULL, NULL, command, error FROM events."checkpoint.failed"
ORDER BY ts
"""
_GATE_CHECKS = """
WITH entry AS (
    SELECT *, unnest(map_entries(checks)) AS one FROM events."seed.gate"
)
SELECT ts, ctx_round AS round, ctx_epoch AS epoch, ctx_env AS env, slot, gate, one.key AS check_name,
    one.value AS holds, passed, seed, action, command
FROM entry
"""
_SCALAR_VALUES = """
SELECT ts, boot, step, one.key AS name, one.value AS value
FROM (SELECT ts, boot_number, step, unnest(map_entries("values")) AS one FROM events.scalar)
    LEFT JOIN boots_ USING (boot_number)
"""
_RAW = """
SELECT ts, boot, stream, seq, type, ctx_round AS round, ctx_epoch AS epoch, ctx_env AS env, ctx_rank AS rank,
    ctx_level AS level, json_extract(line, '$.data') AS data
FROM events.raw LEFT JOIN boots_ USING (boot_number)
"""


def _rewards(components: Sequence[str]) -> str:
    columns = "".join(
        f""", unnest(reward_components[{_quoted(name, "'")}]) AS {_quoted(name, '"')}"""
        for name in components
    )
    return (
        "SELECT ctx_round AS round, ctx_epoch AS epoch, unnest(range(len(op))) AS env, "
        f"unnest(reward) AS reward{columns} FROM events.epoch"
    )


def _quoted(name: str, quote: str) -> str:
    return quote + name.replace(quote, 2 * quote) + quote


_RETURNS = (
    "SELECT round, one.key AS component, avg(one.value) AS mean, "
    "sum(one.value) / nullif(sum(total_return), 0) AS share, task FROM "
    "(SELECT place, ctx_round AS round, total_return, task, "
    'unnest(map_entries(reward_components)) AS one FROM events."episode.finished") '
    "GROUP BY round, component, task ORDER BY min(place), component"
)
_ROLLBACKS = _all_of("governor.rollback", "ts, ctx_round AS round, ctx_epoch AS epoch, ctx_env AS env")
_SYSTEM = _all_of("system", "ts, ctx_round AS round, ctx_epoch AS epoch, ctx_rank AS rank")
_ROUNDS = (
    f'SELECT ts, boot, ctx_round AS round, {_ROUND} FROM events."round.finished" '
    "LEFT JOIN boots_ USING (boot_number) ORDER BY place"
)
_PPO_UPDATES = _all_of("ppo.update", "ts, ctx_round AS round")
_EPOCHS = (
    "SELECT ts, round, epoch, env, * EXCLUDE (ts, round, epoch, env) FROM "
    f"({_per_env(_PER_ENV, 'ts, ctx_round AS round, ctx_epoch AS epoch, ctx_level AS level, seconds')})"
)

_VIEWS: dict[str, View] = {
    "runs": View("each start of the run: configuration, machine, versions, how it ended", _RUNS),
    "rounds": View("each round: returns, accuracies, counts of seeds, delays", _ROUNDS),
    "episodes": View("each env's episode: return by component, accuracy, seeds by outcome", _EPISODES),
    "epochs": View("each env and epoch: losses, accuracies, reward, gradients", _EPOCHS),
    "slots": View("each slot and epoch: stage, blueprint, alpha, contribution, gradients", _SLOTS),
    "seeds": View("each seed's life, from germination to its end", _SEEDS),
    "stages": View("each stage that a seed entered, and who caused it", _STAGES),
    "gates": View("each evaluation of a gate", _GATES),
    "gate_checks": View("each check of a gate whose verdict was new or needed", _GATE_CHECKS),
    "decisions": View(
        "each action of the policy, all heads, how probable it was, and the best other op", _DECISIONS
    ),
    "rewards": View("each env and epoch: the reward, a column per component", ""),
    "returns": View("each round's returns, and each task's: every component's mean and share", _RETURNS),
    "shapley": View("each seed's Shapley value at its round's end", _SHAPLEY),
    "interactions": View("what each two seeds gain by one another, at their round's end", _INTERACTIONS),
    "ppo_updates": View("each PPO update: losses, entropy, ratios, gradients", _PPO_UPDATES),
    "evaluations": View("each policy played on the held-out hosts: the run's, and its rivals", _EVALUATIONS),
    "evaluation_leads": View("the run's policy against each rival, host by host", _EVALUATION_LEADS),
    "evaluation_tasks": View("each policy played on the held-out hosts, by task", _EVALUATION_TASKS),
    "observations": View("each group of the policy's inputs in a round: outliers, drift", _OBSERVATIONS),
    "drift": View("gradient drift of each source", _DRIFT),
    "layers": View("each layer and env at level DEBUG: gradients, weights, outputs", _LAYERS),
    "rollbacks": View("each time that the governor put a host back", _ROLLBACKS),
    "incidents": View(
        "a row per incident: what, where, since when, after which change, whether open", _INCIDENTS
    ),
    "anomalies": View("each signal raised, escalated, cleared, or still there after a resume", _ANOMALIES),
    "phases": View("seconds of each phase of an epoch, by rank", _PHASES),
    "system": View("the machine, once a second", _SYSTEM),
    "checkpoints": View("each checkpoint, saved or failed", _CHECKPOINTS),
    "commands": View("each command: who, what, outcome", _COMMANDS),
    "parameters": View("each change of a parameter", _all_of("param.changed")),
    "logs": View("each line of the log", _all_of("log", "ts, ctx_round AS round, ctx_epoch AS epoch")),
    "scalars": View("each number that a published loop logged", _SCALAR_VALUES),
    "raw_events": View("every event as it was written, repeated ones among them", _RAW),
}
DESCRIPTIONS = {name: view.description for name, view in _VIEWS.items()}
"""Descriptions of the views, one line each."""


def views(components: Sequence[str], told: int) -> dict[str, str]:
    """SQL of each view.

    Args:
        components: of the run's rewards.
        told: the last round whose seeds' ends were told.
    """
    own = {"rewards": _rewards(components), "seeds": _SEEDS.format(told=told)}
    return {name: own.get(name, view.sql) for name, view in _VIEWS.items()}
