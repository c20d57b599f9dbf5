"""The decision about a key, over every combination of what it depends on."""

from __future__ import annotations

import itertools

import pytest

from ckptfs.publish.plan import (
    Copy,
    Delete,
    Kind,
    Known,
    Lost,
    Materialize,
    Nothing,
    Occupant,
    Probe,
    Put,
    PutMarker,
    Scene,
    Source,
    Wait,
    Wanted,
    decide,
)
from ckptfs.types import NO_CONTENT, ContentId, ETag, Key

MINE, OTHER = ContentId(1), ContentId(2)
ETAG = ETag("known")
SOURCE = Source(Key("source"), ETag("s"))
HEIR, PUTTING = Key("heir"), Key("putting")

BRINGABLE = [
    Wanted(Kind.CONTENT, MINE, staged, source, putting)
    for staged, source, putting in itertools.product([False, True], [None, SOURCE], [None, PUTTING])
]
WANTED = [Wanted(Kind.ABSENT), Wanted(Kind.AS_IS), Wanted(Kind.MARKER), *BRINGABLE]
OCCUPANTS = [
    None,
    *(
        Occupant(OTHER, staged, elsewhere, heir, stuck)
        for staged, elsewhere, heir, stuck in itertools.product(
            [False, True], [False, True], [None, HEIR], [False, True]
        )
        if heir is not None or not stuck
    ),
]
SCENES = [
    Scene(wanted, known, occupant, uncertain)
    for wanted, known, occupant, uncertain in itertools.product(
        WANTED,
        [None, Known(ETAG, NO_CONTENT), Known(ETAG, MINE), Known(ETAG, OTHER)],
        OCCUPANTS,
        [False, True],
    )
    if occupant is None or (known is not None and known.content == OTHER)
]


def fits(scene: Scene) -> bool:
    """Whether the bucket has what is wanted."""
    match scene.wanted.kind:
        case Kind.AS_IS:
            return True
        case Kind.ABSENT:
            return scene.known is None
        case Kind.MARKER:
            return scene.known is not None
        case Kind.CONTENT:
            return scene.known is not None and scene.known.content == MINE


@pytest.mark.parametrize("scene", SCENES, ids=range(len(SCENES)))
def test_every_combination(scene: Scene) -> None:
    action = decide(scene)
    over = None if scene.known is None else scene.known.etag
    if scene.uncertain:
        assert action == Probe()
        return
    if fits(scene):
        assert action == Nothing()
        return
    assert not isinstance(action, Nothing | Probe), "something is to be done"
    only_copy = scene.occupant is not None and not scene.occupant.elsewhere
    occupant = scene.occupant
    if isinstance(action, Put | Copy | Delete) and only_copy:
        # A change takes the last object of a content that is needed: never without its bytes here, and never while the
        # heir can still be waited for.
        assert occupant is not None
        assert occupant.staged
        assert occupant.heir is None or (occupant.heir_stuck and not isinstance(action, Delete))
    match action:
        case Put(content, etag):
            assert (content, etag) == (MINE, over)
            assert scene.wanted.staged
            assert scene.wanted.source is None
        case Copy(content, source, etag):
            assert (content, source, etag) == (MINE, SOURCE, over)
        case Delete(etag):
            assert scene.wanted.kind is Kind.ABSENT
            assert etag == over
        case PutMarker():
            assert scene.wanted.kind is Kind.MARKER
            assert scene.known is None
        case Materialize(content):
            assert content == OTHER
            assert only_copy
            assert occupant is not None
            assert not occupant.staged
        case Wait(on):
            assert on in {HEIR, PUTTING}
            assert on != HEIR or only_copy
        case Lost(content):
            assert content == MINE
            assert not scene.wanted.staged


THERE = Known(ETAG, OTHER)
C = Wanted(Kind.CONTENT, MINE, staged=True)
RECLAIMED = Wanted(Kind.CONTENT, MINE, staged=False, source=SOURCE)
ABSENT = Wanted(Kind.ABSENT)


@pytest.mark.parametrize(
    ("scene", "action"),
    [
        (Scene(C), Put(MINE, None)),
        (Scene(C, Known(ETAG, NO_CONTENT)), Put(MINE, ETAG)),
        (Scene(C, Known(ETAG, MINE)), Nothing()),
        (Scene(C, Known(ETAG, MINE), uncertain=True), Probe()),
        (Scene(C, THERE, uncertain=True), Probe()),
        (Scene(RECLAIMED), Copy(MINE, SOURCE, None)),
        (Scene(Wanted(Kind.CONTENT, MINE, staged=True, source=SOURCE)), Copy(MINE, SOURCE, None)),
        (Scene(Wanted(Kind.CONTENT, MINE, staged=True, putting=PUTTING)), Wait(PUTTING, "")),
        (Scene(Wanted(Kind.CONTENT, MINE)), Lost(MINE)),
        (Scene(ABSENT), Nothing()),
        (Scene(ABSENT, uncertain=True), Probe()),
        (Scene(ABSENT, THERE), Delete(ETAG)),
        # rename a→b: a waits for b, whether or not its bytes are here; then it goes
        (Scene(ABSENT, THERE, Occupant(OTHER, staged=False, heir=HEIR)), Wait(HEIR, "")),
        (Scene(ABSENT, THERE, Occupant(OTHER, staged=True, heir=HEIR)), Wait(HEIR, "")),
        (Scene(ABSENT, THERE, Occupant(OTHER, staged=False, heir=HEIR, heir_stuck=True)), Wait(HEIR, "")),
        (Scene(ABSENT, THERE, Occupant(OTHER, staged=False, elsewhere=True, heir=HEIR)), Delete(ETAG)),
        # then a new a: it waits for b too, but not for ever
        (Scene(C, THERE, Occupant(OTHER, staged=False, heir=HEIR)), Wait(HEIR, "")),
        (Scene(C, THERE, Occupant(OTHER, staged=False, heir=HEIR, heir_stuck=True)), Materialize(OTHER)),
        (Scene(C, THERE, Occupant(OTHER, staged=True, heir=HEIR, heir_stuck=True)), Put(MINE, ETAG)),
        # unlinked but open
        (Scene(ABSENT, THERE, Occupant(OTHER, staged=False)), Materialize(OTHER)),
        (Scene(ABSENT, THERE, Occupant(OTHER, staged=True)), Delete(ETAG)),
        # being written, torn or faulty: the old object stays
        (Scene(Wanted(Kind.AS_IS), THERE), Nothing()),
        (Scene(Wanted(Kind.AS_IS)), Nothing()),
        (Scene(Wanted(Kind.MARKER)), PutMarker()),
        (Scene(Wanted(Kind.MARKER), THERE), Nothing()),
    ],
)
def test_table(scene: Scene, action: object) -> None:
    decided = decide(scene)
    if isinstance(action, Wait):
        assert isinstance(decided, Wait)
        assert decided.on == action.on
    else:
        assert decided == action
