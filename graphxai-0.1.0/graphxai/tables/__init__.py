"""Work on tables of molecules: streamed runs, files that grow row by row, reports in one file."""
