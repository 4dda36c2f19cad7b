"""What is wrong: with the machine before a run, with a run after its end."""
