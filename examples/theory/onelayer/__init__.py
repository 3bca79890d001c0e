"""The setting of the paper's Theorem 1: network, delayed training, bound, figure."""
