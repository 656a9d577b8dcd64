"""One module per stage: take the stage's own settings and file paths, call the library,
write the result, return its summary.

A summary is a flat mapping of names (with their unit) to numbers and words: what `railx
STAGE --json` prints and what is tracked.
"""
