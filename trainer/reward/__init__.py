"""What an action earned: batched kernels over N envs."""
