"""Facts and run context: what shapes a turn's prompt, and what tool bodies may bind, read under the turn's identity."""
