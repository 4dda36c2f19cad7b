"""Publishing from the training loops of other frameworks, a few lines over the hooks of each.

A module per framework, of which it needs the package: `pytorch`, `lightning`, `hugging_face`, `keras`,
`stable_baselines3`, `torchrl`. Nothing imports this package but the programs of users.
"""
