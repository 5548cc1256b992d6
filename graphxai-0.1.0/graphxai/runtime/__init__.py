"""Serve every room with processes, threads, files, downloads, progress bars and devices."""
