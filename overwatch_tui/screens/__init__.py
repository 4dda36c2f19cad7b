"""Textual's part: the main screen, questions, help, screenshots.

Imports `model`, `render`, `panels` and the table of keys; the application imports it.
"""
