"""Showing: what the verdict looks like on the terminal and in each report file.

Nothing here decides, and nothing touches a host.
"""
