"""The runs of a directory of reports over time: their files, what is shown of them, and the pages that show it."""
