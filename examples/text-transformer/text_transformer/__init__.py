"""A Transformer that tells good reviews from bad ones, trained asynchronously."""
