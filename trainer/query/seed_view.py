"""SQL of the view `seeds`: the rules of `protocol.journal.seed_lives` over all rounds at once.

A life begins with each stage GERMINATED that no rollback caused. What a rollback puts back belongs to the
newest life of that blueprint in its slot; all else to the life that the slot held before. No life outlasts
its round.
"""

from esper_overwatch.protocol.messages.vocabulary import LIVE, WITH_SEED

_LIVE = ", ".join(f"'{stage.name}'" for stage in LIVE)
_SEED = ", ".join(f"'{stage.name}'" for stage in WITH_SEED)

_SEEDS = f"""
WITH births AS (
    SELECT place, ctx_env AS env, ctx_round AS round, ctx_epoch AS epoch, slot, to_stage, blueprint,
        parameters, contribution, seed, "by" = 'governor' AS restored,
        to_stage = 'GERMINATED' AND "by" <> 'governor' AS is_birth
    FROM events."seed.stage" WHERE ctx_env IS NOT NULL AND {{rounds}}
), anchored AS (
    SELECT *, CASE
        WHEN is_birth THEN place
        WHEN restored AND blueprint IS NOT NULL THEN max(CASE WHEN is_birth THEN place END)
            OVER (PARTITION BY round, env, slot, blueprint ORDER BY place)
        END AS anchor
    FROM births
), lived AS (
    SELECT *, last_value(anchor IGNORE NULLS) OVER in_slot AS life,
        last_value(CASE WHEN to_stage IN ({_SEED}) THEN true
            WHEN to_stage = 'PRUNED' OR restored THEN false END IGNORE NULLS) OVER in_slot AS is_open
    FROM anchored WINDOW in_slot AS (PARTITION BY round, env, slot ORDER BY place)
), moved AS (
    SELECT *, lag(life) OVER (PARTITION BY round, env, slot ORDER BY place) AS life_before FROM lived
), steps AS (
    SELECT life, place, epoch, to_stage, restored,
        CASE WHEN NOT is_birth THEN contribution END AS contribution, false AS undone
    FROM moved WHERE life IS NOT NULL
    UNION ALL
    SELECT life_before, place, epoch, 'DORMANT', true, NULL, true
    FROM moved WHERE restored AND life_before <> life
), stood AS (
    SELECT life, max_by(to_stage, place) AS stage, max_by(epoch, place) AS epoch, max(place) AS place
    FROM steps WHERE undone OR to_stage IN ({_SEED}, 'PRUNED') GROUP BY life
), put_back AS (
    SELECT life, min(steps.epoch) AS epoch FROM steps JOIN stood USING (life)
    WHERE restored AND to_stage NOT IN ({_SEED}, 'PRUNED') AND steps.place > stood.place
        AND stage IN ({_SEED})
    GROUP BY life
), slots AS (
    SELECT place, boot_number, ctx_round AS round, unnest(range(len(op))) AS env,
        unnest(contribution) AS contribution
    FROM events.epoch WHERE {{rounds}}
), measured AS (
    SELECT slots.place, round, env, unnest(names.slots) AS slot, unnest(contribution) AS contribution
    FROM slots JOIN boots_ AS names USING (boot_number)
), held AS (
    SELECT place, contribution,
        last_value(holder IGNORE NULLS) OVER (PARTITION BY round, env, slot ORDER BY place) AS life
    FROM (
        SELECT place, round, env, slot, coalesce(CASE WHEN is_open THEN life END, -1) AS holder,
            NULL AS contribution
        FROM lived
        UNION ALL
        SELECT place, round, env, slot, NULL, contribution FROM measured WHERE contribution IS NOT NULL
    )
), contributions AS (
    SELECT life, place, contribution FROM steps WHERE contribution IS NOT NULL
    UNION ALL
    SELECT life, place, contribution FROM held WHERE contribution IS NOT NULL AND life <> -1
), newest AS (
    SELECT life, max_by(contribution, place) AS contribution FROM contributions GROUP BY life
), finished AS (
    SELECT life, max(ended.ctx_epoch) AS epoch
    FROM (SELECT round, max_by(life, place) AS life FROM lived GROUP BY round, env, slot) AS held
    JOIN events."round.finished" AS ended ON ended.ctx_round = held.round WHERE {{rounds}} GROUP BY life
)
SELECT births.place, env, slot, blueprint, births.round, births.epoch AS germinated_epoch,
    CASE WHEN put_back.life IS NOT NULL THEN put_back.epoch
        WHEN stage IN ({_LIVE}) THEN finished.epoch ELSE stood.epoch END AS end_epoch,
    CASE WHEN put_back.life IS NOT NULL THEN 'DORMANT'
        WHEN stage IN ({_LIVE}) AND finished.life IS NULL THEN NULL ELSE stage END AS end_stage,
    newest.contribution, parameters, seed
FROM births
LEFT JOIN stood ON stood.life = births.place
LEFT JOIN put_back ON put_back.life = births.place
LEFT JOIN newest ON newest.life = births.place
LEFT JOIN finished ON finished.life = births.place
WHERE is_birth
"""
KEPT_SEEDS = "seeds_kept_"
"""The table of the lives of settled rounds; see `seed_cache`."""


def seeds_of_rounds(first: int, last: int | None = None) -> str:
    """SQL of the lives of these rounds, with the place of their birth.

    Args:
        last: None = all from the first on.
    """
    rounds = f"ctx_round >= {first}" + ("" if last is None else f" AND ctx_round <= {last}")
    return _SEEDS.format(rounds=rounds)


def seeds_view(settled: int) -> str:
    """SQL of the view.

    Args:
        settled: the last of the rounds whose lives are in `KEPT_SEEDS`; 0 = there are none.
    """
    sql = seeds_of_rounds(settled + 1 if settled else 0)
    if settled:
        sql = f"SELECT * FROM {KEPT_SEEDS} UNION ALL BY NAME ({sql})"
    return f"SELECT * EXCLUDE (place) FROM ({sql}) ORDER BY place"
