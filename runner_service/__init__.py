"""The runner service of Turnkeeper."""
