"""Servers and networks that the tests run against: real ones, on loopback."""
