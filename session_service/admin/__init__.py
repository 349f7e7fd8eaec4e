"""What operators see and do, and the audit of it."""
