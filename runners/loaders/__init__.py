"""Loaders: decoded data reused without losing accuracy (PerFect), and a data pipeline that sizes itself (InTune).

What scripts use is re-exported by `stoker.loaders`; nothing here needs a daemon, a runner or a job.
"""
