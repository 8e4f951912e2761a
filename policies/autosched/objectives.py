"""The objectives of a search, each the better the smaller it is. It imports nothing, so the command line can offer them at once."""

#: mean and 99th percentile of completion times, deadlines missed, unfairness, GPU-hours held
OBJECTIVES = ("jct", "p99", "slo", "rho", "cost")
