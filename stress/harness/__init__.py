"""The harness of the verification programme: what its jobs have in common.

Helpers that the tests use too, to find an actor, to speak the protocol by hand, to run the peer,
are in :mod:`support`, beside this package.
"""

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

PYTHONPATH = os.pathsep.join(map(str, (ROOT / "stress", ROOT, ROOT / "protocol")))
"""For processes of the programme: they run the code of this checkout, whatever is installed."""
