"""Serve every room: processes, threads, files, downloads, progress and devices."""
