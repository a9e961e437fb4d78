"""`moecache record`: a model over a prompt set with fixed limits, sampling and seeds, its complete routing logged."""
