"""Recovery and copy benchmarks, side by side with the peers: ``python -m statelift.bench``."""
