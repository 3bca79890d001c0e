"""The tables and pictures of the pages of results, from the histories in ``results``.

``python -m benchmarks.tables`` writes the tables anew, and a test holds the pages
against the histories. ``python -m benchmarks.tables.pictures`` draws the pictures.
"""
