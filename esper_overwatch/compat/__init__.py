"""Writers of other tools that publish a run instead: only the import of a program changes."""
