"""The runner service by itself: its far sides are a model, a tool server, gates and a stand-in session service."""
