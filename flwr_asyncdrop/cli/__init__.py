"""The command line: runs on a simulated fleet, comparisons, reports."""
