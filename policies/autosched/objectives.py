"""What a search may make small. It imports nothing, so the command line can offer them at once."""

#: mean and 99th percentile of completion times, deadlines missed, unfairness, GPU-hours held
OBJECTIVES = ("jct", "p99", "slo", "rho", "cost")
