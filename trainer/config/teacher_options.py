"""Options of the teacher that a policy imitates before PPO begins."""

from __future__ import annotations

from typing import Annotated

from .section import Section, count, number


class TeacherConfig(Section, frozen=True):
    search_rounds: Annotated[
        int,
        count(
            "First rounds in which a teacher tries schedules, to find out what each is worth in which task; "
            "0 = PPO begins untaught",
            ge=0,
        ),
    ] = 0
    demonstration_rounds: Annotated[
        int,
        count(
            "Rounds after teacher.search_rounds in which each env follows the schedule that is worth most by "
            "what was measured of its host; the imitation has a minibatch in each pass for each of them"
        ),
    ] = 12
    passes: Annotated[
        int,
        count(
            "Passes of the imitation over all demonstrations and the hosts of the search",
            le=1000,
        ),
    ] = 300
    learning_rate: Annotated[
        float,
        number(
            "Learning rate of the imitation (Adam); it falls linearly to 0 over teacher.passes",
            le=1.0,
        ),
    ] = 0.003
    plant_epoch: Annotated[
        int,
        count(
            "Epoch, from 0, at which the teacher plants, when hosts have shown something of their task",
            ge=0,
        ),
    ] = 5

    @property
    def rounds(self) -> int:
        """How many of a run's first rounds are the teacher's."""
        return self.search_rounds + self.demonstration_rounds if self.search_rounds else 0
