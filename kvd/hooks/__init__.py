"""Git hooks that keep the index of a repository up to date: installed, told of, removed."""
