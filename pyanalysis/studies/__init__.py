"""Offline studies of routing traces: what the sequences hold, and whether it pays. `moecache study`, STUDIES.md."""
