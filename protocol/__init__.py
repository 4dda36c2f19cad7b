"""The wire contract between the trainer daemon and its clients; `esper_overwatch` is the door to it."""
