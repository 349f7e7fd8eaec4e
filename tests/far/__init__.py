"""The outer edge: stand-ins for the model, the tools and the gates, each on a real socket of the test's own loop."""
