"""The protocol between a hermes-actor and its clients: messages, framing, and both ends of it.

No module here does input or output, and none imports more than msgspec.
"""

from hermes_protocol.operations import OPERATIONS, Operation, result_type
from hermes_protocol.values import Blob, Scalar, Stored, Value, from_value, to_value

__all__ = [
    "OPERATIONS",
    "Blob",
    "Operation",
    "Scalar",
    "Stored",
    "Value",
    "from_value",
    "result_type",
    "to_value",
]
