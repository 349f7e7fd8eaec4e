"""Who calls, and what this service signs."""
