"""The environment of every git that kvd runs."""

from __future__ import annotations

import os

# Where the user's own configuration is; every other GIT_* variable may point git at another repository.
_KEPT_VARIABLES = {"GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM", "GIT_CONFIG_NOSYSTEM", "GIT_EXEC_PATH"}


def git_environment() -> dict[str, str]:
    """This process's environment without what a hook or a shell would use to redirect git."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("GIT_") or k in _KEPT_VARIABLES}
    return kept | {"GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
