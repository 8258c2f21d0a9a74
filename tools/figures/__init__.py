"""The pictures of the manual, as SVG: charts of real runs, and diagrams of what the code says. `python -m tools.figures`."""
