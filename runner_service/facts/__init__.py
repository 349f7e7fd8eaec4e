"""Facts on the runner's side: asked once per turn, told before the prompt, never taken from a request."""
