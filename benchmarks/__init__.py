"""Ratios of ours to a floor or to another package, one file per question: ``python -m benchmarks``."""
