"""Workload traces: reading the public formats, what they look like, and workloads made from them. No store."""
