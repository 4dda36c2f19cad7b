"""Datasets and the texts, images and batches made of them.

Imports `config`, `compute` and `plugins`. `hosts`, `loop`, `ranks`, `daemon` and `cli` import it.
"""
