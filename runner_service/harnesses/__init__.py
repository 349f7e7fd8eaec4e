"""What plays a turn: a harness talks to a model, a script or an agent process."""
