"""The pieces panels are made of: plots as text, and the one Textual widget that shows lines."""
