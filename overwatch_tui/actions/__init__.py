"""What keys do: one class per group of keys; the app has them all."""

from __future__ import annotations
