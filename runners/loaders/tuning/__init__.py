"""The number of workers of each stage of a data pipeline: the observations, the controllers that decide, and the guard."""
