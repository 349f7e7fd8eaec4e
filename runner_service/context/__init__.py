"""The run context, bound into the bodies of tools and hidden from the model: pure functions (SPEC 7.3-7.9)."""
