"""Tables of molecules: streamed runs, files that grow, reports in one file."""
