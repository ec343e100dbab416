"""Checkpoints: where their files lie, the metadata document, and the store that holds both."""
