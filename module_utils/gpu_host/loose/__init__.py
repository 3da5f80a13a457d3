"""Evidence as people have it: bug reports, folders and archives of outputs, pasted text.

Only the controller reads it.
"""
