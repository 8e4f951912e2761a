"""The simulator: the live policies on a virtual clock over a workload. No store, no daemon and no wall clock takes part."""
