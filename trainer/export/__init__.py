"""A run's journal in the formats of other tools."""
