"""Slow, obvious references in plain Python: what the engine must decide, written from the definitions alone."""
