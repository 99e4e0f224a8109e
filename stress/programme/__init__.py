"""The verification programme: what its jobs have in common.

Jobs use the helpers of the tests too: there is one way to find an actor, to speak the protocol by
hand, to run the peer.
"""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

PYTHONPATH = os.pathsep.join(map(str, (ROOT / "stress", ROOT, ROOT / "protocol")))
"""For processes of the programme: they run the code of this checkout, whatever is installed."""

if str(ROOT / "tests") not in sys.path:
    sys.path.append(str(ROOT / "tests"))
