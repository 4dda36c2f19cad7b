"""PPO of Stable-Baselines3 on CartPole, published: `esper-tui cartpole` shows it live.

python examples/sb3_cartpole.py --run-name cartpole --total-timesteps 100000
"""

from __future__ import annotations

import argparse

from stable_baselines3 import PPO

from esper_overwatch.protocol.integrations.stable_baselines3 import StableBaselines3Callback  # publish


def main() -> None:
    parser = argparse.ArgumentParser(description="PPO of Stable-Baselines3 on CartPole")
    parser.add_argument("--run-name", default=None, help="name of the published run")
    parser.add_argument("--total-timesteps", type=int, default=100_000)
    args = parser.parse_args()
    model = PPO("MlpPolicy", "CartPole-v1", n_steps=512, device="cpu", seed=1)
    callback = StableBaselines3Callback(args.run_name)  # publish
    model.learn(args.total_timesteps, callback)


if __name__ == "__main__":
    main()
