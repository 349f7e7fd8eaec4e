"""Agents: artifacts with variants, each a line of immutable revisions."""
