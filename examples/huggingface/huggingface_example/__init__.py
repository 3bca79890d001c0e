"""A small BERT of Hugging Face that sorts requests, trained asynchronously."""
