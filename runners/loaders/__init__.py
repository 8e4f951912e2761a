"""Loaders: decoded data reused without losing accuracy (PerFect), and a data pipeline that sizes itself (InTune).

`stoker.loaders` re-exports the part for scripts; nothing here needs a daemon, a runner or a job.
"""
