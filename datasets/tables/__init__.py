"""Tables of molecules, whatever program wrote them: the one reader of command line, app and Python.

The road of a file: `opening` unpacks it and tells its format; `rows` or `structures` makes rows of
it; `columns` chooses the column with the structures; and `table` hands out records of the columns
wanted. It does the same for frames and arrays.
"""
