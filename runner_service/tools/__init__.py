"""The tools that a harness may call, and what each call leaves behind."""
