"""Text made of the model: lines, tables, plots, the layout of a screen. No Textual, no panel.

Imports `model`, `source` and the table of keys; everything above them imports it.
"""
