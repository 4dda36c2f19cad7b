"""Developers' generators of pages and examples; not installed. `make docs` runs them."""

from pathlib import Path

ROOT = Path(__file__).parents[1]
