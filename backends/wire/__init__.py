"""An S3 engine in this process: plain sockets, one event loop, no work per byte that the kernel can do."""
