"""A demonstration of the pair, with nothing but Python: `python -m demo`, and `python -m demo.serve` to keep it up."""
