"""PPO on CartPole in one file, published: `esper-tui ppo-cartpole` shows it live.

    python examples/cleanrl_ppo.py --run-name ppo-cartpole --total-timesteps 100000

The algorithm is that of Schulman et al. 2017 (arXiv:1707.06347) with generalised advantages
(arXiv:1506.02438); names and order are those that readers of CleanRL's `ppo.py` know. The lines that publish
end with `# publish`.
"""

from __future__ import annotations

import argparse
import math
import time

import torch
from torch import Tensor, nn
from torch.distributions import Categorical

from esper_overwatch import publish  # publish


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="PPO on CartPole")
    parser.add_argument("--run-name", default=None, help="name of the published run")
    parser.add_argument("--total-timesteps", type=int, default=100_000)
    parser.add_argument("--learning-rate", type=float, default=2.5e-4)
    parser.add_argument("--num-envs", type=int, default=8)
    parser.add_argument("--num-steps", type=int, default=128, help="steps of a rollout")
    parser.add_argument("--gamma", type=float, default=0.99)
    parser.add_argument("--gae-lambda", type=float, default=0.95)
    parser.add_argument("--num-minibatches", type=int, default=4)
    parser.add_argument("--update-epochs", type=int, default=4)
    parser.add_argument("--clip-coef", type=float, default=0.2)
    parser.add_argument("--ent-coef", type=float, default=0.01)
    parser.add_argument("--vf-coef", type=float, default=0.5)
    parser.add_argument("--max-grad-norm", type=float, default=0.5)
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


class CartPole:
    """N carts with poles, by the equations of Barto, Sutton and Anderson 1983; up to 500 steps."""

    gravity, pole_mass, half_length, total_mass = 9.8, 0.1, 0.5, 1.1
    force, seconds, max_position, max_angle, max_steps = 10.0, 0.02, 2.4, math.radians(12), 500

    def __init__(self, num_envs: int) -> None:
        self.state = self._fresh(num_envs)
        self.length = torch.zeros(num_envs, dtype=torch.long)

    def _fresh(self, count: int) -> Tensor:
        return torch.rand(count, 4) * 0.1 - 0.05

    def step(self, action: Tensor) -> tuple[Tensor, Tensor, list[int]]:
        """Observation [N, 4], done [N], lengths of the episodes that ended; the reward is 1 each step."""
        _, x_dot, theta, theta_dot = self.state.unbind(1)
        force = torch.where(action == 1, self.force, -self.force)
        moment = self.pole_mass * self.half_length
        pushed = (force + moment * theta_dot**2 * theta.sin()) / self.total_mass
        inertia = self.half_length * (4 / 3 - self.pole_mass * theta.cos() ** 2 / self.total_mass)
        theta_acc = (self.gravity * theta.sin() - theta.cos() * pushed) / inertia
        x_acc = pushed - moment * theta_acc * theta.cos() / self.total_mass
        change = torch.stack([x_dot, x_acc, theta_dot, theta_acc], 1)
        self.state = self.state + self.seconds * change
        self.length += 1
        fell = (self.state[:, 0].abs() > self.max_position) | (self.state[:, 2].abs() > self.max_angle)
        done = fell | (self.length >= self.max_steps)
        lengths = self.length[done].tolist()
        self.state[done] = self._fresh(len(lengths))
        self.length[done] = 0
        return self.state.clone(), done.float(), lengths


def layer_init(layer: nn.Linear, std: float = math.sqrt(2)) -> nn.Linear:
    nn.init.orthogonal_(layer.weight, std)
    nn.init.zeros_(layer.bias)
    return layer


def mlp(outputs: int, std: float) -> nn.Sequential:
    return nn.Sequential(
        layer_init(nn.Linear(4, 64)),
        nn.Tanh(),
        layer_init(nn.Linear(64, 64)),
        nn.Tanh(),
        layer_init(nn.Linear(64, outputs), std),
    )


class Actor(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.actor, self.critic = mlp(2, 0.01), mlp(1, 1.0)

    def forward(self, obs: Tensor, action: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Action, its log-probability, the entropy, the value."""
        probs = Categorical(logits=self.actor(obs))
        action = probs.sample() if action is None else action
        return action, probs.log_prob(action), probs.entropy(), self.critic(obs).squeeze(-1)


def main() -> None:
    args = parse_args()
    run = publish(args.run_name, config=vars(args), tags=["ppo", "cartpole"])  # publish
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    batch_size = args.num_envs * args.num_steps
    agent = Actor()
    optimizer = torch.optim.Adam(agent.parameters(), lr=args.learning_rate, eps=1e-5)
    envs = CartPole(args.num_envs)

    shape = (args.num_steps, args.num_envs)
    obs, actions, logprobs = torch.zeros(*shape, 4), torch.zeros(shape), torch.zeros(shape)
    dones, values = torch.zeros(shape), torch.zeros(shape)
    next_obs, next_done, global_step = envs.state.clone(), torch.zeros(args.num_envs), 0
    start_time = time.perf_counter()

    for _ in range(args.total_timesteps // batch_size):
        returned: list[int] = []
        for step in range(args.num_steps):
            global_step += args.num_envs
            obs[step], dones[step] = next_obs, next_done
            with torch.no_grad():
                action, logprobs[step], _, values[step] = agent(next_obs)
            actions[step] = action
            next_obs, next_done, lengths = envs.step(action)
            returned += lengths

        with torch.no_grad():
            next_value = agent(next_obs)[3]
            advantages, last = torch.zeros(shape), torch.zeros(args.num_envs)
            for t in reversed(range(args.num_steps)):
                alive = 1.0 - (dones[t + 1] if t + 1 < args.num_steps else next_done)
                following = values[t + 1] if t + 1 < args.num_steps else next_value
                delta = 1.0 + args.gamma * following * alive - values[t]
                advantages[t] = last = delta + args.gamma * args.gae_lambda * alive * last
            returns = advantages + values

        b_obs, b_actions, b_logprobs = obs.flatten(0, 1), actions.flatten(), logprobs.flatten()
        b_advantages, b_returns = advantages.flatten(), returns.flatten()
        for _ in range(args.update_epochs):
            for mb in torch.randperm(batch_size).chunk(args.num_minibatches):
                _, newlogprob, entropy, newvalue = agent(b_obs[mb], b_actions[mb])
                logratio = newlogprob - b_logprobs[mb]
                ratio = logratio.exp()
                mb_advantages = b_advantages[mb]
                mb_advantages = (mb_advantages - mb_advantages.mean()) / (mb_advantages.std() + 1e-8)
                clipped = ratio.clamp(1 - args.clip_coef, 1 + args.clip_coef)
                pg_loss = -torch.min(mb_advantages * ratio, mb_advantages * clipped).mean()
                v_loss = 0.5 * (newvalue - b_returns[mb]).square().mean()
                loss = pg_loss - args.ent_coef * entropy.mean() + args.vf_coef * v_loss
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(agent.parameters(), args.max_grad_norm)
                optimizer.step()

        approx_kl = ((ratio - 1) - logratio).mean()
        losses = {"policy": pg_loss, "value": v_loss, "entropy": entropy.mean(), "approx_kl": approx_kl}
        sps = global_step / (time.perf_counter() - start_time)
        run.log({"losses": losses, "charts/SPS": sps}, step=global_step)  # publish
        if returned:
            run.log({"charts/episodic_return": sum(returned) / len(returned)}, step=global_step)  # publish
        if run.asked("stop"):  # publish
            break  # publish
    run.finish()  # publish


if __name__ == "__main__":
    main()
