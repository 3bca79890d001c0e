"""Real devices with unequal shares of a CPU, and what the virtual clock predicts."""
