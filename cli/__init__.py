"""The `kvd` command: arguments in, text or JSON out."""
