"""Runs whose first rounds are a teacher's."""
