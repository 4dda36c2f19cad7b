"""The trainer as a CUDA program: on a simulated device of a CPU build of torch, counted call by call."""
