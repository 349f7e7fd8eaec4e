"""Who executes queued runs: claims, supervised attempts, recovery."""
