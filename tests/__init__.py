"""The tests: one contract suite for every backend; the rest mirrors the folders. Import as ``tests.…``."""
