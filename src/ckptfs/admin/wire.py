"""Lines of the control socket.

Request::

    {"v": 1, "op": "wait", "path": "run/step-6", "level": "published", "timeout_s": 60.0}

Replies, any number of ``progress``, then exactly one of the other two::

    {"v": 1, "kind": "progress", "pending": {"objects": 3, "bytes": 4096, "failing": 0}}
    {"v": 1, "kind": "done", "result": {…}}
    {"v": 1, "kind": "error", "error": {"type": "DeadlineError", "message": "…", "hint": "…"}}

Paths are text with the file system's own escapes (``os.fsdecode``): JSON carries any byte of a name that way.
"""

from __future__ import annotations

import json
from typing import Any, Final

from ckptfs import limits
from ckptfs.errors import CkptfsError, UsageError

VERSION: Final = 1

Message = dict[str, Any]


def encode(message: Message) -> bytes:
    """One line, its end included."""
    line = json.dumps({"v": VERSION, **message}, ensure_ascii=True, separators=(",", ":")).encode("ascii") + b"\n"
    assert len(line) <= limits.CONTROL_LINE_BYTES_MAX, f"a control line of {len(line)} bytes"
    return line


def decode(line: bytes) -> Message:
    """The message of one line.

    Raises:
        UsageError: it is no JSON object of this version.
    """
    try:
        message = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"not a line of JSON: {error}") from None
    if not isinstance(message, dict):
        raise UsageError("not a JSON object")
    if message.get("v") != VERSION:
        raise UsageError(
            f"control protocol version {message.get('v')!r} is not spoken here, {VERSION} is",
            hint="The command and the running daemon come from different versions of ckptfs: unmount and mount again.",
        )
    return message


def encode_error(error: CkptfsError) -> Message:
    """The error reply for ``error``."""
    return {"kind": "error", "error": {"type": type(error).__name__, "message": str(error), "hint": error.hint}}


def decode_error(message: Message) -> CkptfsError:
    """The error that an error reply carries, as the type it had at the other side."""
    error = message.get("error")
    if not isinstance(error, dict):
        return CkptfsError("the daemon answered with an error that cannot be read")
    kind = _types(CkptfsError).get(str(error.get("type")), CkptfsError)
    return kind(str(error.get("message")), hint=str(error.get("hint", "")))


def _types(base: type[CkptfsError]) -> dict[str, type[CkptfsError]]:
    found = {base.__name__: base}
    for child in base.__subclasses__():
        found.update(_types(child))
    return found


def sole(error: BaseException) -> BaseException:
    """What an exception group of one holds (nurseries wrap what went wrong in them); anything else as it is."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error
