"""The operator's settings: file, environment, command line. Imported by screens and what is above them."""

from __future__ import annotations
