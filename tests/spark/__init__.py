"""Tests that need a real Spark cluster; one is started for all of them."""
