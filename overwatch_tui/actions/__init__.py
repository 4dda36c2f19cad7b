"""Actions of the keys: one class per group of keys; the app inherits them all."""

from __future__ import annotations
