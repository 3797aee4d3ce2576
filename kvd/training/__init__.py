"""Trains the table of word vectors that ships with recall (`kvd/recall/table.npz`).

Source packages in many languages supervise it without labels: a comment and the definition that it describes, a name
and the body that it names, a file's head and its chunks are pairs that belong together. The docs themselves are cut
out of the code, so that what is learned is which words of a question go with which words of code.

    python -m kvd.training fetch DIR    # the archives of packages.txt, some GB, from PyPI, npm and Debian
    python -m kvd.training pairs DIR    # what they teach
    python -m kvd.training train DIR    # writes kvd/recall/table.npz; raise --table-version
    python -m kvd.training held DIR     # packages that were kept apart, as a benchmark
    kvd bench recall DIR/held --checkouts DIR/held/checkouts

`fetch` needs pip, npm and apt-get with `deb-src` entries; nothing of what it brings is built or run. It needs kvd's
own dependencies, torch among them, and no GPU. Only the table ships: no code and no text of any package is in it.

- `packages.txt`: what is trained with, to the version; `archives`: which files of it are read, and which never
- `docs`, `pairs`, `gather`: files to pairs; `corpus`: pairs to numbers
- `model`, `train`, `export`: the table while it is trained, how it is trained, and what ships of it
- `held`, `questions.txt`: the evaluation
"""
