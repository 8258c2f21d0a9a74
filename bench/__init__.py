"""Benchmarks: what Evenflow costs and how it scales, as ratios within one run. `python -m bench` runs them."""
