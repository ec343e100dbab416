"""The in-process S3 engine."""
