"""Writes docs/findings.md: what reviews of the prior art asked for, and the tests that hold it.

`python -m tools.findings_page`. A test names what it holds by the marker `finding("ID")`.
"""

from __future__ import annotations

from .markers import ROOT, holders, rows

PAGE = ROOT / "docs" / "findings.md"

FINDINGS = {
    "AD-01": "One call runs every anomaly check; a check without a reading fails a test.",
    "DT-01": "Collectors stay out of compiled regions or are safe in them: DEBUG recompiles nothing.",
    "PT-07": "As DT-01: statistics of layers inside a compiled step cause no recompilation.",
    "DT-02": "NaN and infinities of all layers and envs come with the one transfer of an epoch.",
    "DT-03": "No parameter without a use.",
    "EM-01": "Gradient norms are finite for gradients up to 1e30 and equal those in float64.",
    "EM-02": "Narrow exceptions only; what is caught is logged with its traceback.",
    "EM-03": "A failure of telemetry is counted and shown as an event.",
    "GC-01": "Collecting statistics of 100 million parameters needs no megabyte more.",
    "GC-02": "Only public functions of torch, or a pinned version that is checked.",
    "GC-03": "One collector; what is not requested is not computed.",
    "GC-04": "A norm is the L2 norm over all gradients; a root mean square is named as such.",
    "GE-01": "Averages of drift equal their closed form and survive a resume bit for bit.",
    "GE-02": "Drift near 0 is bounded, corrected for bias, and silent while the average warms up.",
    "IN-01": "The profiler is wired to a command.",
    "PR-01": "The profiler is wired to an option, and its trace has a PPO update.",
    "PR-02": "The profiler records every kind of device that is there.",
    "PR-03": "The profiler's schedule counts epochs, so that a complete update is always inside.",
    "LH-01": "A NaN in the LSTM's state is raised.",
    "LH-02": "An LSTM state ten times its usual size is raised.",
    "LH-03": "An LSTM state that has died is raised.",
    "TC-01": "Every field of the configuration has a reader.",
    "HP-1": "Nothing in the loop waits for the device but the one transfer of an epoch.",
    "HP-2": "The policy's forward pass, sampling and evaluation compile in one piece, and that code runs.",
    "HP-3": "Mixed precision is decided once per run; fp16 has a loss scaler, bf16 has none.",
    "HP-4": "One wait per real dependency between streams; none where the data is resident.",
    "HP-5": "Work on slots is planned once per topology and batched over envs.",
    "HP-6": "Autocast wraps the forward pass only, as torch advises.",
    "HP-7": "The rollout lives on the device; an update makes one transfer.",
    "HP-8": "Timers do not synchronise.",
    "HP-9": "The stacked engine's losses and gradients equal one module per env, in float64.",
    "AR-1": "Rewards are one batched kernel, equal to a scalar reference.",
    "AR-2": "Topology is static: growing and pruning change rows of tensors, never modules.",
    "AR-3": "The trainer never waits for telemetry; what it refuses is counted.",
    "AR-4": "Many columns travel in one transfer.",
    "AR-5": "Groups of hosts do not race.",
    "AR-6": "A captured policy equals the eager one, or falls back with a reason that is shown.",
    "AR-7": "Labels out of range are found when data is loaded.",
    "AR-8": "Shapley values are sampled without bias, with an interval, in bounded memory.",
    "AR-9": "Gradient hooks are used only where a measurement shows a gain.",
    "AR-10": "GPU use, kernels, allocator and Python's share are in the profiler's result.",
    "PD-01": "A rollback's penalty reaches PPO whichever epoch it happens in.",
    "PD-02": "An embargo lasts exactly as long as configured.",
    "PD-03": "The option that compiles changes what runs on the hot path.",
    "PD-04": "No floor of probabilities keeps the policy from becoming certain.",
    "PD-05": "An epoch's event has its train loss, train accuracy and host gradient norm.",
    "PD-06": "The memory warning is raised.",
    "PD-07": "An escalation lasts for exactly the epochs requested.",
    "PD-08": "Overload drops no event of a seed's or the run's life.",
    "PD-09": "The terminal does not say that all is well while something is wrong.",
    "PD-10": "A hidden field does not take the keyboard's focus.",
    "PD-11": "The heuristic policy can fossilise.",
    "PD-12": "The reward never sees the test images.",
    "PD-13": "Validation images do not grow fewer with more envs.",
    "DR-01": "A contribution is measured by statistics of the host without the seed, Shapley values too.",
    "DR-02": "Each gate is told when it is asked, and every evaluation is counted.",
    "DR-03": "A value that was given stays, also where it is the default's; each says where it came from.",
    "DR-04": "A stage is entered by legal edges only; a NaN seed at alpha 0 changes no bit of its host.",
    "DR-05": "The terminal counts seeds as SQL does; what a rollback puts back is not a new life.",
    "DR-06": "A tagged checkpoint stays until it is deleted, and a run can be resumed from any.",
    "DR-07": "Events of life that find their queue full wait on the disk, in order, and none is dropped.",
    "DR-08": "A slow machine is judged by its own usual time and escalates nothing; KL by its target.",
    "DR-09": "All heads of an action are told, with ids that join it to its effects; fp16's scale too.",
    "DR-10": "A blueprint that is named twice is refused, as is every bad value, in one line.",
    "DR-11": "Limits on how many seeds a host grows bind the policy and the operator.",
    "DR-12": "Learning rates and coefficients follow schedules, which a resumed run continues.",
    "DR-13": "The policy sees style, tempo, curve and interactions of each slot's seed.",
    "DR-14": "Every option, flipped, changes what its description says.",
    "DR-15": "Each of the prior art's 19 views is answered by a query on a run that trains.",
    "DR-16": "Two runs with one seed and default options write the same journal; no clock decides.",
    "DR-17": "Listening without keys is refused with the command that makes them.",
    "DR-18": "After an early stop no minibatch is computed; the advantages' deviation has a floor.",
    "DR-19": "Interactions of pairs of seeds equal their definition.",
    "DR-20": "The eight blueprints for texts have the stated numbers of parameters at width 384.",
    "DR-21": "What would undo a host at once is masked, told, and not executed.",
    "DR-22": "A published file of which a byte has changed is refused by name.",
    "DR-23": "The host of each preset has the stated number of parameters.",
    "DR-24": "What a preset changes, itself and by its task, can be printed.",
    "DR-25": "What an operator did to a seed names the command.",
    "DR-26": "Each env's episode is told: return by component, parameters, seeds by end, rollbacks.",
    "DR-27": "Hosts of a real size learn, from files alone, and an epoch copies no images to the device.",
    "DR-28": "A terminal that joins a run shows all of its state within a second.",
    "DR-29": "A blueprint that the run does not have fails gate G0 by name, and nothing is planted.",
    "DR-30": "A start that is refused leaves no run folder, whatever refuses it.",
    "DR-31": "How many readings raise and clear anomalies is an option, as are limits, gates and governor.",
    "DR-32": "Each function, class and constant of the three packages is used by one of them.",
    "DR-33": "A removed event file is told although its writer has made it again.",
    "DR-34": "What retention removes takes no names of slots and ops from SQL.",
    "DR-35": "A start that takes long says what it is doing.",
    "DR-36": "A sample of the machine has the allocator's memory, and a full device raises the warning.",
}


def page() -> str:
    """The whole page as Markdown."""
    return "\n".join(
        [
            "# Findings",
            "",
            "Made by `make docs` from the tests' markers; do not edit.",
            "",
            "Reviews of the prior art, and its use, left these findings; each has a test of",
            "what must be true here instead. PD are defects of the prior art that nobody had reported;",
            "DR are those that a review of this trainer found.",
            "",
            "| finding | what holds here | held by |",
            "|---|---|---|",
            *rows(FINDINGS, holders("finding")),
            "",
        ]
    )


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
