"""The networks being grown: n hosts and their seeds, trained as one stacked program."""
