"""Runs: how they start, stand, are cancelled and end."""
