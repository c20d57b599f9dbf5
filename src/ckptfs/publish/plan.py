"""What to do about one key: the decision, as a pure function of values.

An obligation on a key says only that its object may differ from what the namespace wants there. So publication keeps no
queue of commands that could go stale: it looks at both sides, takes one step, and looks again, until there is nothing
to do.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ckptfs.types import NO_CONTENT

if TYPE_CHECKING:
    from ckptfs.types import ContentId, ETag, Key


class Kind(enum.Enum):
    """What the namespace wants under a key."""

    CONTENT = "a content"
    ABSENT = "no object"
    AS_IS = "whatever is there: the file is being written, torn or faulty"
    MARKER = "an object that stands for an empty directory"


@dataclass(frozen=True, slots=True)
class Source:
    """An object that holds a content."""

    key: Key
    etag: ETag


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the namespace wants under a key.

    Attributes:
        kind: which of the cases; the rest is of CONTENT.
        content: the content.
        staged: its bytes are on this node.
        source: another key's object that is known to hold it and that nobody is about to change.
        putting: another key under which it is going up now.
    """

    kind: Kind
    content: ContentId = NO_CONTENT
    staged: bool = False
    source: Source | None = None
    putting: Key | None = None


@dataclass(frozen=True, slots=True)
class Known:
    """The object under the key, as last seen or put."""

    etag: ETag
    content: ContentId


@dataclass(frozen=True, slots=True)
class Occupant:
    """The content of the object under the key, when it is not the wanted one and something still needs it.

    Attributes:
        content: the content.
        staged: its bytes are on this node too, made durable for this purpose.
        elsewhere: another object holds it for certain, and nobody is about to change that one.
        heir: a key that wants it and does not have it yet.
        heir_stuck: attempts on the heir keep failing, or the heir waits for this key.
    """

    content: ContentId
    staged: bool
    elsewhere: bool = False
    heir: Key | None = None
    heir_stuck: bool = False


@dataclass(frozen=True, slots=True)
class Scene:
    """Everything that a decision about a key depends on.

    Attributes:
        wanted: what the namespace wants there.
        known: what the bucket holds there, as far as known.
        occupant: the content that a change would take from the bucket.
        uncertain: an attempt began whose end nobody saw: the object may not be the known one.
    """

    wanted: Wanted
    known: Known | None = None
    occupant: Occupant | None = None
    uncertain: bool = False


@dataclass(frozen=True, slots=True)
class Nothing:
    """The obligation is fulfilled."""


@dataclass(frozen=True, slots=True)
class Put:
    """Put the content from this node, over exactly the known object (none: only where none is)."""

    content: ContentId
    over: ETag | None


@dataclass(frozen=True, slots=True)
class Copy:
    """Copy the content within the bucket, over exactly the known object."""

    content: ContentId
    source: Source
    over: ETag | None


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete exactly this object."""

    etag: ETag


@dataclass(frozen=True, slots=True)
class PutMarker:
    """Put an empty object for an empty directory, where none is."""


@dataclass(frozen=True, slots=True)
class Probe:
    """Look what is there, after an attempt whose end nobody saw."""


@dataclass(frozen=True, slots=True)
class Materialize:
    """Have a content on this node, durably: its only object is about to be changed."""

    content: ContentId


@dataclass(frozen=True, slots=True)
class Wait:
    """Look again after the next attempt on another key."""

    on: Key
    reason: str


@dataclass(frozen=True, slots=True)
class Lost:
    """The wanted content is neither on this node nor in any known object."""

    content: ContentId


Action = Nothing | Put | Copy | Delete | PutMarker | Probe | Materialize | Wait | Lost


def decide(scene: Scene) -> Action:
    """The next step about a key.

    The object of a key is never overwritten or deleted while it is the only place in the bucket of a content that some
    name wants: its heir gets it first, by a copy. Where that cannot be (the heirs form a ring, or the heir cannot be
    written) the bytes are at least on this node before they leave the bucket; a mere deletion waits on.
    """
    wanted, known = scene.wanted, scene.known
    if scene.uncertain:
        return Probe()
    if _is_so(wanted, known):
        return Nothing()
    if wanted.kind is Kind.MARKER:
        return PutMarker()
    if known is None:
        return _bring(wanted, None)
    rescue = _rescue(scene.occupant, deleting=wanted.kind is Kind.ABSENT)
    if rescue is not None:
        return rescue
    return Delete(known.etag) if wanted.kind is Kind.ABSENT else _bring(wanted, known.etag)


def _is_so(wanted: Wanted, known: Known | None) -> bool:
    """Whether the bucket has what is wanted, as far as known."""
    match wanted.kind:
        case Kind.AS_IS:
            return True
        case Kind.ABSENT:
            return known is None
        case Kind.MARKER:
            return known is not None
        case Kind.CONTENT:
            return known is not None and known.content == wanted.content


def _rescue(occupant: Occupant | None, *, deleting: bool) -> Action | None:
    """What must happen before the object may be changed; ``None`` when it may be."""
    if occupant is None or occupant.elsewhere:
        return None
    if occupant.heir is not None and (deleting or not occupant.heir_stuck):
        return Wait(occupant.heir, "its object is the only one of a content that is wanted there")
    return None if occupant.staged else Materialize(occupant.content)


def _bring(wanted: Wanted, over: ETag | None) -> Action:
    """How the wanted content gets under the key."""
    if wanted.source is not None:
        return Copy(wanted.content, wanted.source, over)
    if wanted.putting is not None:
        return Wait(wanted.putting, "the same content is going up there; it will be copied")
    return Put(wanted.content, over) if wanted.staged else Lost(wanted.content)
