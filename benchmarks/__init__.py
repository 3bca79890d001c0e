"""Scripts that print figures; none of them is a test.

``python -m benchmarks`` runs those with a goal, side by side in one run.
"""
