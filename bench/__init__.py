"""Recovery and copy benchmarks, side by side with the peers: ``python -m statelift.bench``.

The micro level is ``bench_*.py`` with pytest-benchmark. To compare two commits, save the figures of
the first and compare those of the second with them; they are kept in ``.benchmarks``, outside git::

    pytest bench --benchmark-autosave
    pytest bench --benchmark-compare
"""
