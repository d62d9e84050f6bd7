"""Ours measured against others, side by side: `training/benchmark.py`. Nothing else of the package imports it."""
