"""Build the narrower module that a submodel's tensors belong to."""
