"""Who decides: observation, actions, recurrent actor-critic, PPO, and baselines behind the same interface."""
