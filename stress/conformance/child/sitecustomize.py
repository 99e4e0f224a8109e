"""Every Python process of a suite begins with this: the stand-in comes before any other import.

Actors are not among them: they are started without the variable.
"""

import os

if os.environ.get("HERMES_CONFORMANCE_SIDE"):
    from conformance.stand_in import install

    install()
