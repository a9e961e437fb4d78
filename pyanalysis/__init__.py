"""The tools around the cache: the command-line program `moecache` and what it delegates to."""
