"""The session service of Turnkeeper."""
