"""What may run, what never runs, and what a person decides.

`core` holds verdicts and how they combine, `code` policies written in Python, `conditions` and `documents` the YAML
rules, `combined` the `Policy` that the guard asks, `golden` the checks of policy files. Nothing is imported here, so
that the core stays free of the loaders' libraries.
"""
