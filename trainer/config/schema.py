"""One typed tree of options: defaults < --preset < --config < ESPER_* environment < --set key=value.

Each field's type holds its bounds and its description; the CLI help, the reference page and the error
messages are made from them. Reading and merging the sources is in `load`.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, field

from .anomaly_options import AnomaliesConfig, DriftConfig
from .host_options import AmpConfig, CompileConfig, CudaConfig, EnvsConfig, HostConfig, ValidationConfig
from .policy_options import EvaluationConfig, PolicyConfig, PPOConfig, RewardConfig
from .section import Section, count
from .seed_options import GatesConfig, GovernorConfig, SeedsConfig
from .service_options import (
    AlertsConfig,
    CheckpointConfig,
    JournalConfig,
    MetricsConfig,
    ProfilerConfig,
    TelemetryConfig,
)
from .task_options import TaskConfig


class Config(Section, frozen=True):
    """Every option of `esper-daemon start`."""

    seed: Annotated[int, count("Seed of every random number", ge=0, le=2**31 - 1)] = 1
    rounds: Annotated[int, count("Number of rounds to train; 0 = until stopped", ge=0)] = 0
    device: Annotated[
        str,
        Meta(
            pattern=r"^(auto|cpu|cuda(:\d+)?)$",
            description="Device to train on: auto (a GPU where there is one), cpu, cuda or cuda:N",
        ),
    ] = "auto"
    episode_epochs: Annotated[int, count("Epochs per episode", ge=2, le=100_000)] = 24
    task: TaskConfig = field(default_factory=TaskConfig)
    host: HostConfig = field(default_factory=HostConfig)
    envs: EnvsConfig = field(default_factory=EnvsConfig)
    amp: AmpConfig = field(default_factory=AmpConfig)
    compile: CompileConfig = field(default_factory=CompileConfig)
    cuda: CudaConfig = field(default_factory=CudaConfig)
    seeds: SeedsConfig = field(default_factory=SeedsConfig)
    gates: GatesConfig = field(default_factory=GatesConfig)
    governor: GovernorConfig = field(default_factory=GovernorConfig)
    validation: ValidationConfig = field(default_factory=ValidationConfig)
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    ppo: PPOConfig = field(default_factory=PPOConfig)
    reward: RewardConfig = field(default_factory=RewardConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    telemetry: TelemetryConfig = field(default_factory=TelemetryConfig)
    drift: DriftConfig = field(default_factory=DriftConfig)
    anomalies: AnomaliesConfig = field(default_factory=AnomaliesConfig)
    profiler: ProfilerConfig = field(default_factory=ProfilerConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    journal: JournalConfig = field(default_factory=JournalConfig)
    alerts: AlertsConfig = field(default_factory=AlertsConfig)
    metrics: MetricsConfig = field(default_factory=MetricsConfig)
