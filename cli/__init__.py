"""The `kvd` command: arguments in, text or JSON out."""

import os
import sys

# As `kvd` or `python -m kvd_cli.main`, not where somebody else imports it.
if os.path.basename(sys.argv[0]) in ("kvd", "-m"):
    from .at_once import end_at_once

    end_at_once()
