"""The wire contract between the trainer daemon and everybody else."""
