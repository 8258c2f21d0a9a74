"""Arguments and results as JSON text: a closed list of types, decoded by the function's annotations.

No pickle and no import by a stored name: what stored data can become is declared by the code that reads it.
"""

from evenflow.codec.calls import (
    DEFAULT_MAX_BYTES,
    call_wires,
    decode_call,
    decode_result,
    encode_call,
    encode_result,
    encode_template,
    may_refer,
    readable_result,
)
from evenflow.codec.references import Reference, holds_reference
from evenflow.codec.registry import register_type
from evenflow.codec.signature import CallSignature
from evenflow.codec.text import LONGEST_MESSAGE, check_text, remark, storable_text
from evenflow.codec.walk import MAX_DEPTH
from evenflow.codec.wire import TAG

__all__ = [
    "DEFAULT_MAX_BYTES",
    "LONGEST_MESSAGE",
    "MAX_DEPTH",
    "TAG",
    "CallSignature",
    "Reference",
    "call_wires",
    "check_text",
    "decode_call",
    "decode_result",
    "encode_call",
    "encode_result",
    "encode_template",
    "holds_reference",
    "may_refer",
    "readable_result",
    "register_type",
    "remark",
    "storable_text",
]
