"""The README's examples, run as they stand there against a real pair."""
