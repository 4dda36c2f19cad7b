"""Developers' generators of pages and examples; not installed. `make docs` runs them."""
