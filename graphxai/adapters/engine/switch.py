"""Which passes the recorded list explains, until the older engine is deleted.

By default passes under the conservative rules; with GRAPHXAI_ENGINE=new those that read attention,
too; with GRAPHXAI_ENGINE=old none.
"""

import os

from graphxai.rules.conservative import current_tape

_CHOSEN = os.environ.get("GRAPHXAI_ENGINE", "rules")
RULES = _CHOSEN in ("rules", "new")
READING = _CHOSEN == "new"


def left_to_the_other() -> bool:
    """Whether attention is read here, which the older engine does by default."""
    tape = current_tape()
    return not READING and tape is not None and not tape.with_biases
