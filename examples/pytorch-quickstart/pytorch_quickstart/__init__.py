"""A small CNN on images of digits, trained asynchronously on submodels."""
