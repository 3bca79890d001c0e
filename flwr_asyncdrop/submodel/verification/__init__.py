"""Try a plan on the model itself: forward, backward, and as a client trains."""
