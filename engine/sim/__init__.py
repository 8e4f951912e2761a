"""The simulator: the policies that run live, on a virtual clock over a workload. No store, no daemon, no wall clock decides anything."""
