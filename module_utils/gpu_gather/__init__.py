"""What each facts module answers, and which kinds of facts a host has.

One file per module of library/ (its arguments, its facts for any evidence, the evidence of a live host), and
`every_kind`, which gathers all of them.
"""
