"""The table of `test_every_option`: each option's flip, or where else its effect is shown.

An option that is added to the tree gets a row here: a value, and the journal's fields, files or answers in
which that value shows. `changes` is the weakest statement: prefer one that says what the value must give.
"""

from __future__ import annotations

from esper_overwatch.protocol.messages.vocabulary import Stage
from esper_overwatch.trainer.config.anomaly_options import SIGNALS, WAITING

from .forked_starts import Start
from .option_effects import (
    LOADED,
    Elsewhere,
    Flip,
    blueprints,
    changes,
    checks_of,
    closed_segments,
    counts,
    course,
    debug_epochs,
    grows,
    limits_of,
    longest_stay,
    measured,
    periodic,
    refused,
    scraped,
    sees,
    shrinks,
    tells,
    together,
    workers,
)

LOSS = "epoch:train_loss"
HOST = "run.started:host_parameters"
UPDATE = "ppo.update:policy_loss"
SEED_NORM = "epoch:seed_grad_norm"
DEBUGGED = ("telemetry.debug_every=1", "telemetry.debug_epochs=2")
SMALL_SEGMENTS = ("journal.segment_bytes=65536", "rounds=6", "telemetry.level=DEBUG")


def host_rates(start: Start) -> list[float]:
    """Learning rate of the hosts in each epoch."""
    return start.column("epoch:host_learning_rate")


def blends(start: Start) -> bool:
    """Whether a seed was ever blended."""
    return longest_stay("BLENDING")(start) > 0


EVALUATED = ("evaluation.rounds=1", "evaluation.hosts=2")
RIVALS = {"no_growth", "fixed", "ppo"}
"""What is played in two rounds, one rival in each."""


def evaluated(start: Start) -> set[str]:
    """Policies that were played on held-out hosts."""
    return set(start.column("evaluation.finished:policy"))


GATE_LIMIT = Elsewhere(
    "no options make seeds of that health or contribution for certain",
    "tests/trainer/seeds/test_lifecycle.py::test_limit_of_each_gate_is_an_option",
)
GOVERNOR_LIMIT = Elsewhere(
    "no options make a host fail for certain",
    "tests/trainer/test_governor.py::test_limits_of_the_governor_are_options",
)

DRIFT_LIMIT = Elsewhere(
    "only drift far beyond the usual shows it",
    "tests/trainer/telemetry/test_drift.py::test_what_is_unusual_is_an_option",
)
FLIPPED_SIGNALS = ("gradient_exploding", "credit")
ANOMALY_LIMIT = Elsewhere(
    "one test moves the limits of each check and lets it raise its anomaly",
    "tests/trainer/telemetry/test_anomalies.py::test_limits_of_each_check_are_an_option",
)
ANOMALY_WAITING = Elsewhere(
    "one test lets each check wait, raise its anomaly and clear it",
    "tests/trainer/telemetry/test_anomalies.py::test_waiting_of_each_check_is_an_option",
)

FLIPS: dict[str, Flip | Elsewhere] = {
    "seed": Flip("2", tells("run.started:seed", 2, LOSS, "epoch:op")),
    "rounds": Flip("1", measured(counts("round.finished"), 2, 1)),
    "device": Flip("cuda:63", refused("cuda:63", "CUDA devices")),
    "episode_epochs": Flip("7", measured(counts("epoch"), 12, 14)),
    # The task and the hosts.
    "task.dataset": Flip("synthetic", tells("run.started:task", "synthetic", LOSS)),
    "task.mixture": Flip("digits,texture", tells("run.started:task", "mixture", LOSS)),
    "task.instances": Flip("1", changes(LOSS, same=(HOST,)), "no_growth", ("task.mixture=texture",)),
    "task.data_dir": Flip("TEXT_FILE", changes(LOSS, HOST), "text"),
    "task.augment": Flip("crop", changes(LOSS), "no_growth"),
    "task.shared_batches": Flip("true", changes(LOSS, same=(HOST,)), "no_growth"),
    "task.tokens": Flip("bpe", tells("run.started:config.task.tokens", "bpe", HOST, LOSS), "text"),
    "task.vocabulary": Flip("300", changes(HOST, LOSS), "text", ("task.tokens=bpe",)),
    "task.context": Flip("16", changes(LOSS, HOST), "text"),
    "task.batch_size": Flip("32", changes(LOSS, same=(HOST,)), "no_growth"),
    "task.batches_per_epoch": Flip("2", changes("epoch:val_loss"), "no_growth"),
    "host.family": Flip("resnet", changes(HOST, LOSS)),
    "host.channels": Flip("4,8", tells("run.started:slots", ["r0c0", "r0c1"], HOST)),
    "host.kernel": Flip("3", changes(HOST, LOSS)),
    "host.blocks": Flip("1", changes(HOST, LOSS), with_=("host.family=resnet",)),
    "host.width": Flip("16", changes(HOST, LOSS), "text"),
    "host.depth": Flip("2", tells("run.started:slots", ["r0c0", "r0c1"], HOST), "text"),
    "host.dropout": Flip("0.3", changes(LOSS, same=(HOST,)), "text"),
    "host.slot_rows": Flip(
        "2",
        tells("run.started:slots", [f"r{row}c{column}" for column in range(3) for row in range(2)], LOSS),
    ),
    "host.heads": Flip("2", changes(HOST, LOSS), "text"),
    "host.mlp": Flip("16", changes(HOST, LOSS), "text"),
    "host.tied_head": Flip("true", changes(HOST, LOSS), "text"),
    "host.learning_rate": Flip("0.1", changes(LOSS, first=1), "no_growth"),
    "host.schedule": Flip(
        "linear", measured(host_rates, [0.05] * 6, [0.05 * (1 - k / 6) for k in range(6)]), "no_growth"
    ),
    "host.warmup_epochs": Flip(
        "2", measured(host_rates, [0.05] * 6, [0.05 * (k / 3) for k in (1, 2, 3, 3, 3, 3)]), "no_growth"
    ),
    "host.weight_decay": Flip("0.5", changes(LOSS, first=1), "no_growth"),
    "host.max_grad_norm": Flip("0.001", changes(LOSS, first=1), "no_growth"),
    "host.momentum": Flip("0.5", changes(LOSS, first=2), "no_growth"),
    # How it is computed.
    "envs.count": Flip("3", tells("run.started:envs", 3, LOSS)),
    "envs.copies": Flip(
        "2",
        measured(lambda start: start.column(LOSS)[0][0] == start.column(LOSS)[0][1], False, True),
        "no_growth",
    ),
    "envs.group_size": Flip("1", tells("run.started:execution.group_size", 1)),
    "envs.threads": Flip("2", sees(workers=2), "endless", look=workers(2)),
    "envs.convolution": Flip("unfold", tells("run.started:execution.convolution", "unfold")),
    "envs.plan": Flip("masked", tells("run.started:execution.plan", "masked")),
    "amp.dtype": Flip("bf16", tells("run.started:execution.amp", "bf16", LOSS)),
    "compile.mode": Elsewhere(
        "a compiler takes minutes",
        "tests/trainer/compute/test_compiler.py::test_policy_loss_gae_reward_and_masked_step_run_compiled",
    ),
    "cuda.graphs": Elsewhere(
        "a CPU has none; graphs change no result",
        "tests/trainer/compute/test_cuda_graphs.py::test_real_graphs_train_as_without",
    ),
    "cuda.tf32": Elsewhere(
        "a CPU has none",
        "tests/trainer/compute/test_device.py::test_tf32_is_set_on_cuda_devices_only",
    ),
    "cuda.deterministic": Elsewhere(
        "a CPU's algorithms are",
        "tests/trainer/compute/test_device.py::test_deterministic_algorithms_are_chosen_on_cuda_devices_only",
    ),
    "cuda.allocator": Flip("nonsense:1", refused("cuda.allocator", "nonsense")),
    # Seeds, and what is measured of them.
    "seeds.blueprints": Flip("norm", measured(blueprints, {"conv_light"}, {"norm"}), "fixed"),
    "seeds.gates": Flip(
        "strict",
        measured(lambda start: {"improved", "gradient_ratio"} <= checks_of("G2")(start), False, True),
        "fixed",
    ),
    "seeds.min_training_epochs": Flip("5", measured(longest_stay("TRAINING"), 2, 5), "fixed"),
    "seeds.min_blending_epochs": Flip("12", grows(longest_stay("BLENDING")), "strict"),
    "seeds.embargo_epochs": Flip("4", measured(longest_stay("EMBARGOED"), 2, 4), "random"),
    "seeds.max_live": Flip(
        "1",
        measured(together(Stage.GERMINATED, Stage.TRAINING, Stage.BLENDING, Stage.HOLDING), True, False),
        "random",
    ),
    "seeds.one_at_a_time": Flip(
        "true", measured(together(Stage.GERMINATED, Stage.TRAINING), True, False), "random"
    ),
    "seeds.learning_rate": Flip("0.5", tells("epoch:seed_learning_rate", 0.5, SEED_NORM), "fixed"),
    "seeds.weight_decay": Flip("0.5", changes(SEED_NORM), "fixed"),
    "seeds.max_grad_norm": Flip("0.001", changes("epoch:seed_grad_norm"), "fixed"),
    "validation.counterfactual_budget": Flip(
        "0.01", changes("epoch:contribution", same=("epoch:stage",)), "fixed"
    ),
    "validation.shapley_every": Flip("2", measured(counts("shapley.computed"), 2, 1)),
    "validation.shapley_coalitions": Flip(
        "4",
        changes("shapley.computed:coalitions", same=(LOSS,)),
        "random",
        ("host.channels=8,8,8,8,8,8,8,8",),
    ),
    "validation.calibration_batches": Flip(
        "1", changes("epoch:val_loss", same=(LOSS,)), "no_growth", ("task.batches_per_epoch=2",)
    ),
    "gates.min_health": GATE_LIMIT,
    "gates.min_gradient_norm": Flip("9", changes("epoch:host_health", same=(LOSS,)), "no_growth"),
    "gates.max_gradient_norm": Flip("0.0001", changes("epoch:host_health", same=(LOSS,)), "no_growth"),
    "gates.min_accuracy_gain": Flip("1", measured(blends, True, False), "strict"),
    "gates.min_gradient_ratio": Flip("1000", measured(blends, True, False), "strict"),
    "gates.min_contribution": GATE_LIMIT,
    # When the governor acts, and what it forbids.
    "governor.learnt_loss_ratio": GOVERNOR_LIMIT,
    "governor.forgotten_loss_ratio": GOVERNOR_LIMIT,
    "governor.divergence_sigmas": GOVERNOR_LIMIT,
    "governor.divergence_ratio": GOVERNOR_LIMIT,
    "governor.divergence_epochs": GOVERNOR_LIMIT,
    "governor.veto": Elsewhere(
        "it needs a host that cannot do without a seed, and a policy that prunes it",
        "tests/trainer/test_veto.py::test_what_would_undo_a_host_is_not_executed",
    ),
    "governor.veto_epochs": Elsewhere(
        "no options make a host fail for certain",
        "tests/trainer/test_veto.py::test_veto_epochs_say_for_how_long",
    ),
    # The policy.
    "policy.kind": Flip("heuristic", tells("run.started:policy", "heuristic", "epoch:op")),
    "policy.constant": Elsewhere(
        "it needs policy.kind=constant, which needs it",
        "tests/trainer/policy/test_actor.py::test_constant_schedule_plants_what_it_names",
    ),
    "policy.file": Elsewhere(
        "it needs the policy of another run",
        "tests/e2e/test_policy_files.py::test_policy_of_small_hosts_decides_for_larger_ones",
    ),
    "policy.learn": Flip("false", shrinks(counts("ppo.update"))),
    "policy.temperature": Flip("0.05", changes("epoch:op"), with_=("policy.learn=false",)),
    "policy.greedy": Flip("true", changes("epoch:op"), with_=("policy.learn=false",)),
    "evaluation.rounds": Flip(
        "1",
        grows(counts("evaluation.finished")),
        with_=("evaluation.rounds=2", "evaluation.hosts=2"),
    ),
    "evaluation.hosts": Flip("3", tells("evaluation.finished:hosts", 3), with_=EVALUATED),
    "evaluation.seed": Flip("3", changes("evaluation.finished:accuracy_mean"), with_=EVALUATED),
    "evaluation.rivals": Flip("random", measured(evaluated, RIVALS, {"ppo", "random"}), with_=EVALUATED),
    "evaluation.constant": Flip(
        "norm,none,none", changes("evaluation.finished:policy"), with_=("evaluation.rivals=", *EVALUATED)
    ),
    "policy.decision_epochs": Flip("0,2", tells("ppo.update:op_fraction.PRUNE", 0.0, UPDATE)),
    "policy.hidden": Flip("16", shrinks(lambda start: (start.folder / "checkpoints/best.pt").stat().st_size)),
    "ppo.learning_rate": Flip("0.002", tells("ppo.update:learning_rate", 0.002, UPDATE)),
    "ppo.schedule": Flip(
        "linear", measured(lambda start: start.column("ppo.update:learning_rate"), [1e-3, 1e-3], [1e-3, 5e-4])
    ),
    "ppo.gamma": Flip("0.5", changes("ppo.update:return_std", same=("epoch:op",), first=0)),
    "ppo.gae_lambda": Flip("0.5", changes("ppo.update:advantage_std")),
    "ppo.clip": Flip("0.01", changes("ppo.update:clip_fraction")),
    "ppo.epochs": Flip("2", tells("ppo.update:epochs", 2), with_=("ppo.target_kl=0",)),
    "ppo.minibatches": Flip(
        "1",
        measured(lambda start: start.column("ppo.update:minibatches")[0], 16, 8),
        with_=("ppo.target_kl=0",),
    ),
    "ppo.entropy_coefficient": Flip("0.5", tells("ppo.update:entropy_coefficient", 0.5, UPDATE)),
    "ppo.entropy_final": Flip(
        "0.03",
        measured(course("ppo.update:entropy_coefficient"), [0.05, 0.005], [0.05, 0.03]),
        with_=("ppo.entropy_rounds=1",),
    ),
    "ppo.entropy_rounds": Flip(
        "2", measured(course("ppo.update:entropy_coefficient"), [0.05, 0.05], [0.05, 0.0275])
    ),
    "ppo.value_coefficient": Flip("5", changes("ppo.update:critic_grad_norm")),
    "ppo.max_grad_norm": Flip("0.001", changes(UPDATE)),
    "ppo.target_kl": Flip("0", tells("ppo.update:target_kl", 0.0, "ppo.update:minibatches")),
    # The reward.
    "reward.mode": Flip("minimal", changes("epoch:reward", same=(LOSS,)), "random"),
    "reward.rent": Flip("1", changes("epoch:reward_components.rent", same=(LOSS,)), "random"),
    "reward.contribution": Flip("1", changes("epoch:reward_components.contribution", same=(LOSS,)), "fixed"),
    "reward.stage": Flip("1", changes("epoch:reward_components.stage", same=(LOSS,)), "random"),
    "reward.shock": Flip(
        "1", changes("epoch:reward_components.shock", same=(LOSS,)), "random", ("reward.mode=contribution",)
    ),
    "reward.early_prune": Flip(
        "1", changes("epoch:reward_components.early_prune", same=(LOSS,)), "random", ("reward.mode=minimal",)
    ),
    "reward.rollback_penalty": Elsewhere(
        "no options make a host fail for certain",
        "tests/trainer/reward/test_compute.py::test_a_rollback_reaches_ppo_whichever_epoch_it_happens_in",
    ),
    "reward.gain": Flip("0.5", changes("epoch:reward_components.gain", same=(LOSS,)), "random"),
    "reward.terminal": Flip(
        "2",
        changes("epoch:reward_components.terminal", same=(LOSS,)),
        "random",
        ("reward.mode=contribution",),
    ),
    "reward.fossilize": Flip(
        "2", changes("epoch:reward_components.fossilize", same=(LOSS,)), "fixed", ("reward.mode=basic",)
    ),
    "reward.drip": Flip(
        "2", changes("epoch:reward_components.drip", same=(LOSS,)), "fixed", ("reward.mode=basic_plus",)
    ),
    "reward.op_fee": Flip("1", changes("epoch:reward_components.op_fee", same=(LOSS,)), "random"),
    "reward.final_epochs": Flip("3", changes("epoch:reward_components.gain", same=(LOSS,)), "random"),
    "reward.only_fossilized": Flip("true", changes("episode.finished:parameters", same=(LOSS,)), "random"),
    "reward.hindsight": Elsewhere(
        "it needs a seed that fossilises and outlives one that helped it",
        "tests/trainer/reward/test_components.py::test_a_scaffold_is_paid_once_and_when_both_are_done",
    ),
    # What is told.
    "drift.host_momentum": Flip("0.5", changes("drift:norm_ema", same=(LOSS,)), "no_growth"),
    "drift.host_warmup": Flip("2", changes("drift:norm_drift", same=(LOSS,)), "no_growth"),
    "drift.seed_momentum": Flip("0.5", changes("drift:norm_ema", same=(LOSS,)), "fixed"),
    "drift.seed_warmup": Flip("2", changes("drift:norm_drift", same=(LOSS,)), "fixed"),
    "drift.policy_momentum": Flip("0.5", changes("drift:norm_ema", same=(LOSS,)), "ppo", ("rounds=3",)),
    "drift.policy_warmup": Flip("1", changes("drift:norm_drift", same=(LOSS,))),
    "drift.usual_momentum": DRIFT_LIMIT,
    "drift.usual_warmup": DRIFT_LIMIT,
    "drift.unusual_factor": DRIFT_LIMIT,
    "anomalies.gradient_exploding": Flip(
        "0.000001,1000000",
        measured(lambda start: "gradient_exploding" in start.column("anomaly:kind"), False, True),
        "no_growth",
    ),
    **{f"anomalies.{signal}": ANOMALY_LIMIT for signal in SIGNALS if signal not in FLIPPED_SIGNALS},
    **{f"anomalies.{name}": ANOMALY_WAITING for name, *_ in WAITING},
    "anomalies.credit": Flip("7,20", sees(warning=7.0, critical=20.0), "endless", look=limits_of("credit")),
    "telemetry.level": Flip("OFF", measured(counts("epoch"), 12, 0)),
    "telemetry.budget": Flip("0.000001", shrinks(counts("drift")), with_=("telemetry.stride=0", "rounds=4")),
    "telemetry.stride": Flip(
        "3", measured(lambda start: start.count("drift") - start.count("ppo.update"), 12, 4)
    ),
    "telemetry.debug_every": Flip("2", measured(debug_epochs, 0, 1)),
    "telemetry.debug_epochs": Flip("3", measured(debug_epochs, 4, 6), with_=DEBUGGED),
    "telemetry.escalate_on": Flip(
        "off", measured(lambda start: debug_epochs(start) > 0, True, False), "wild"
    ),
    "telemetry.escalate_epochs": Flip("1", shrinks(debug_epochs), "wild", ("telemetry.escalate_share=1",)),
    "telemetry.escalate_share": Flip(
        "0", measured(lambda start: debug_epochs(start) > 0, True, False), "wild"
    ),
    "profiler.rounds": Flip("1", measured(lambda start: len(start.files("traces/*")), 0, 1)),
    "profiler.epochs": Flip("3", tells("profiler.finished:epochs", 3), with_=("profiler.rounds=1",)),
    # What is kept.
    "checkpoint.keep": Flip("1", measured(lambda start: len(start.files("checkpoints/round-*")), 2, 1)),
    "checkpoint.every_seconds": Flip("1", measured(periodic, False, True), with_=LOADED),
    "journal.segment_bytes": Flip("65536", grows(closed_segments), with_=SMALL_SEGMENTS[1:]),
    "journal.segment_seconds": Flip("1", grows(closed_segments), with_=LOADED),
    "journal.keep_bytes": Flip("1", shrinks(closed_segments), with_=SMALL_SEGMENTS),
    "journal.keep_share": Elsewhere(
        "it is about other runs",
        "tests/e2e/test_full_disk.py::test_share_of_ended_runs_is_an_option",
    ),
    # Who is told.
    "alerts.file": Flip("nowhere.toml", refused("nowhere.toml", "is not there")),
    # Who may listen.
    "metrics.listen": Flip("127.0.0.1:0", sees(addresses=1), "endless", look=scraped),
    "metrics.allow_unauthenticated": Flip(
        "true", sees(addresses=1), look=scraped, with_=("metrics.listen=0.0.0.0:0", "rounds=0")
    ),
}
