"""What things cost, beside what cannot be undercut, measured in the same run: `python -m bench`."""
