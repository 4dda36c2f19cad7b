"""Meaning of each panel's fields, and hints for a diagnosis: the first part of the help."""

from __future__ import annotations

from typing import NamedTuple


class PanelHelp(NamedTuple):
    """Help on one panel."""

    fields: tuple[tuple[str, str], ...]
    """(name as it is shown, meaning)."""
    diagnosis: tuple[tuple[str, str], ...] = ()
    """(symptom, usual meaning and where to look next)."""


_TEXT = """
[every]
-- = not measured (not the same as zero)
LIVE = age of the last heartbeat; SLOW from 2 s, STALE from 5 s, LOST from 15 s
gap lost bad = holes in the stream; events dropped or skipped; frames that could not be read
[envs env]
STATE = ok, warning, critical; stalled: no progress; rollback: by the governor; -- no data
ACC GAIN = validation accuracy in percent, and its change since the epoch before in points
RETURN = sum of rewards in this episode
GRAD = L2 norm of the host's gradient
DRIFT = |norm - average| / average of that norm; ? and ! = the daemon raised a warning, an alarm
slots = . dormant  G germinated  T training  B blending  H holding  F fossilized
= P pruned  E embargoed  R resetting; a number = epochs in the stage, .7 = alpha
LAST = what is wrong with the env, else the policy's last action in it
? rollback = the loss was not finite or exploded, and an earlier state was restored: Enter, then the log
? GRAD and DRIFT up = a seed blends in too fast, or the learning rate is high: view 4, then the slot's alpha
? stalled = no better accuracy for many epochs: are its slots dormant, is GAIN zero everywhere?
? GRAD -- = not measured: telemetry is below the level that has it
[incidents]
CRIT = act now, or work is lost
WARN = look when you can
info = noted: one of many sources shows this now and then
after = the suspect: the last change before it; U undoes it
acked muted = somebody has seen it (for all viewers); it makes no noise for a while
? one env = its seeds or its data: n opens the guide and selects it, 1 and Enter show it
? many envs at once = something they share: the suspect, the policy (view 3), the machine (view 5)
? quiet = none of its signals is raised now; it is over unless one returns soon
[drift]
NORM MEAN = L2 norm of the gradient, and its exponential average
DRIFT = |value - average| / average, of the norm and of the health
HEALTH = 1 = gradients flow, 0 = dead or exploding; MEAN its average
curve = norm drift over the window, all on one scale
? -- = the average needs 20 samples first
? one head of the policy = it has stopped learning or has jumped: compare entropy and KL in view 3
? a seed, then its env = the seed drives the host: watch its alpha and gate in view 4
? NORM falls to 0 = dead: the learning rate, or inputs that no longer vary
[policy]
KL = how far the policy moved in the update
entropy = 1 = explores freely, 0 = has decided
clip = share of samples that PPO clipped
EV = how well the critic predicts returns: 1 = exactly, 0 = no better than their mean. Most of it may be the
  clock: early epochs have more to earn than late ones, in every env
EV envs = the same between envs at the same epoch: 0 = it knows the time and nothing of the env; only a
  critic that sees which env is better helps the policy to learn what to do in which
ratio max = widest probability ratio of new to old policy
value loss, policy loss = of the update, means over its batches
grad norm = before clipping
LSTM h rms = size of the recurrent state
? KL and clip high = updates are too large: lower learning rate or fewer epochs per update
? entropy falls early = it decides before it has seen much: raise the entropy coefficient
? EV below 0 = the critic is worse than a constant: returns have changed, or its learning rate is wrong
? return flat, EV high = it predicts well and does not improve: look at the reward's components, 1 and Enter
[decisions]
SURE = probability of the whole action: its slot and all else included
OP = probability of its operation alone
VALUE = return that the critic expects from here on
ELSE = the likeliest other operation
[curves]
p10 p50 p90 = quantiles of the returns of a round over its envs
[layers]
NORM RMS MAX = of a layer's gradient; of .out what the module puts out
ZERO% = share that is 0; behind a ReLU its dead share
UPDATE = learning rate x NORM / WEIGHT, without momentum
[profile]
SHARE SELF = time in an operator itself, without what it calls
[seeds]
STAGE EP = stage of its life, and epochs in it
ALPHA = share with which it is blended into the host, 0 to 1
CONTRIB = points of accuracy that the host would lose without it
GRAD HEALTH = norm of its gradient; 1 = flows, 0 = dead
DRIFT = of its gradient norm against its average
GATE = the last gate that it was judged by, and what failed there
? long in TRAINING = its gate does not pass: GATE names the check
? HOLDING, contribution < 0 = it harms the host; the policy should prune it
? all of a blueprint pruned = the table at the bottom: it may be too large, or wrong for this host
[log]
time round epoch = local time, and where the run was
source = env, slot, policy, or the part of the daemon
tag = kind of event; ? and ! = warning, critical
text = Enter shows all fields of the event
? too much = / filters: -tag:seed leaves seeds out, sev:w keeps warnings, tag:cmd commands
[commands]
state = SENT, ACK or NACK, RUNNING, DONE or FAILED; NO REPLY where the daemon was silent
ms = from sending to the answer
by = who sent it
? NACK = refused: the reason stands beside it
? ACK for long = it is carried out between two epochs: is the run paused, or an epoch slow?
[system]
cpu memory = of the process that trains: 100% is one core; of the machine: 100% is all of it;
= the bar and the curve are the machine's
load = processes of the machine that compute or wait for a disk, mean of a minute
heartbeat = age of the daemon's last sign of life; that of the trainer is its own
gaps = holes in the stream that this terminal saw, and how many events were repaired
refused = events that a full queue of the daemon did not take
? LIVE, trainer old = the daemon answers and the loop does not: a long epoch, or it hangs
? gaps grow = the link is too slow for all events: --thin
? refused grow = the disk or the bus is too slow: a lower telemetry level
[metrics]
LAST MIN MAX MEAN = of the values that this terminal knows of
STEP N = step of the last value, and how many values there were
not finite = how many values were nan or inf
? not finite = the loop logged nan or inf: Enter shows since when
[charts]
chart = a group of metrics over the window; :zoom_in and :zoom_out change it
[about]
tags notes = as the loop gave them
summary = numbers and texts that the loop has set by hand
files = what the loop has written, with the whole path
[pins]
charts = those that are pinned, or that were opened: h l cursor, s saves, : has what else there is
? a gap in a curve = not measured then
"""
"""By the names of panels: fields, then symptoms behind a question mark; what is indented goes on."""


def _read(text: str) -> dict[str, PanelHelp]:
    found: dict[str, PanelHelp] = {}
    for part in text.strip().removeprefix("[").split("\n["):
        names, _, body = part.partition("]\n")
        lines = body.strip().replace("\n  ", " ").splitlines()
        rows = [(name.strip(), meaning) for name, _, meaning in (line.partition("= ") for line in lines)]
        fields = tuple(row for row in rows if not row[0].startswith("? "))
        hints = tuple((name[2:], meaning) for name, meaning in rows if name.startswith("? "))
        found |= dict.fromkeys(names.split(), PanelHelp(fields, hints))
    return found


FIELD_HELP = _read(_TEXT)
"""Help by the name of the panel."""
LEGEND = FIELD_HELP.pop("every").fields
"""Fields that every view has."""
