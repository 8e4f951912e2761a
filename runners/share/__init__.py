"""Several jobs on a GPU: whose turn it is."""
