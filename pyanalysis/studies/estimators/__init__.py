"""Estimators that studies share, each tested against a closed form or a process with known values."""
