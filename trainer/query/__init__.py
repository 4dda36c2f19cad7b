"""SQL over a run: its journal as tables."""
