"""The life of seeds: stages, slot table, gates, alpha, blueprints."""
