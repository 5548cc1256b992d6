"""Tables of molecules: streamed runs, files that grow row by row, and reports in one file."""
