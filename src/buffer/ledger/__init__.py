"""What the users of a queue have promised each other, beside its manifest. Pure.

`envelope` is the file: its version, who it belongs to, and sections by name. Each section has a module of its own,
which declares a view of the file with that section opened, and holds every decision about it as a function:
`plan` (the loader's).
"""
