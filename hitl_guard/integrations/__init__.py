"""What connects the guard with others' frameworks: one package or module a framework, imported by name, never by us."""
