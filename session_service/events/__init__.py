"""The log of what happened in runs, and its watchers."""
