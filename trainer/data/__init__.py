"""Datasets that live on the training device, and the order in which each env sees them."""
