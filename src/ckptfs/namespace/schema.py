"""The namespace's tables. The comments here are the canonical description of what is kept and why.

Every table is a map from a key to one row, because the live state is held in memory and written behind it
(:mod:`ckptfs.namespace.tables`): what would be a list elsewhere (the names of a hard-linked inode, the xattrs of an
inode) is one row here.
"""

from __future__ import annotations

SCHEMA_VERSION = 1

SCHEMA = """
-- Counters that must survive a restart: next_ino, next_dentry, next_content, lsn; written in each transaction. mark: a
-- random number, fixed at the first start, by which this namespace knows the objects that it put itself.
CREATE TABLE IF NOT EXISTS meta (
    name TEXT PRIMARY KEY,
    value INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- One inode. content is the committed content: what a crash leaves and what is published; while the file is open for
-- writing the live content may be a newer one. parent and name are its home: the one name of an inode with nlink 1
-- (every directory), one of the names of a hard-linked one; parent is 0 when nlink is 0 (open-unlinked; collected at
-- start). listed, of a directory: 0 it came from the bucket and its objects there are not all known; 1 they are, or
-- it was made or changed here; 2 they are, it came from the bucket and nothing was changed here (it goes when the
-- bucket no longer has it).
CREATE TABLE IF NOT EXISTS inode (
    ino INTEGER PRIMARY KEY,
    mode INTEGER NOT NULL,
    uid INTEGER NOT NULL,
    gid INTEGER NOT NULL,
    nlink INTEGER NOT NULL,
    rdev INTEGER NOT NULL,
    size INTEGER NOT NULL,
    allocated INTEGER NOT NULL, -- bytes that are no holes, as far as the local disk tells
    atime_ns INTEGER NOT NULL,
    mtime_ns INTEGER NOT NULL,
    ctime_ns INTEGER NOT NULL,
    birth_ns INTEGER NOT NULL,
    content INTEGER NOT NULL,
    parent INTEGER NOT NULL,
    name BLOB NOT NULL,
    target BLOB,            -- of a symlink
    listed INTEGER NOT NULL,
    hidden INTEGER NOT NULL -- objects of the bucket directly below this directory that no file can stand for
) STRICT;
CREATE INDEX IF NOT EXISTS inode_orphan ON inode (ino) WHERE nlink = 0;

-- One name. id gives readdir a position that never moves: it grows with every new name and is never used again.
CREATE TABLE IF NOT EXISTS dentry (
    parent INTEGER NOT NULL,
    name BLOB NOT NULL,
    id INTEGER NOT NULL,
    ino INTEGER NOT NULL,
    PRIMARY KEY (parent, name)
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX IF NOT EXISTS dentry_position ON dentry (parent, id);

-- All names of an inode that has, or had, more than one: JSON [[parent, name in hex], ...].
CREATE TABLE IF NOT EXISTS names (
    ino INTEGER PRIMARY KEY,
    names TEXT NOT NULL
) STRICT;

-- All extended attributes of an inode that has some: JSON {name in hex: value in hex}.
CREATE TABLE IF NOT EXISTS xattr (
    ino INTEGER PRIMARY KEY,
    attributes TEXT NOT NULL
) STRICT;

-- One content. place says where its bytes are on this node: 0 nowhere (only in the bucket), 1 in the staging file of
-- this id, 2 in data here (small ones: one transaction makes bytes and name durable together). key and etag name the
-- object that holds it in the bucket, empty when none does. digests: XXH3-128 of each block_bytes block, 16 bytes
-- each, fixed at the seal; empty while OPEN and for objects that other tools made.
CREATE TABLE IF NOT EXISTS content (
    id INTEGER PRIMARY KEY,
    ino INTEGER NOT NULL,
    size INTEGER NOT NULL,
    state TEXT NOT NULL,
    place INTEGER NOT NULL,
    key TEXT NOT NULL,
    etag TEXT NOT NULL,
    block_bytes INTEGER NOT NULL,
    digests BLOB NOT NULL,
    error TEXT NOT NULL,
    data BLOB
) STRICT;
CREATE INDEX IF NOT EXISTS content_state ON content (state);

-- What the bucket holds under a key, as last seen or put; content 0 when its content is no longer known here.
CREATE TABLE IF NOT EXISTS object (
    key TEXT PRIMARY KEY,
    etag TEXT NOT NULL,
    size INTEGER NOT NULL,
    content INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Keys whose object may differ from what the namespace wants there: the publisher looks at both and acts. lsn is the
-- newest mutation that made it so, error what the last attempt met.
CREATE TABLE IF NOT EXISTS obligation (
    key TEXT PRIMARY KEY,
    lsn INTEGER NOT NULL,
    error TEXT NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS obligation_order ON obligation (lsn, key);

-- Multipart uploads that were begun and not yet completed or aborted: a start aborts what the life before left.
CREATE TABLE IF NOT EXISTS upload (
    upload_id TEXT PRIMARY KEY,
    key TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- Directory renames whose keys are not yet obligations: the publisher expands them piece by piece.
-- Prefixes end in a slash.
CREATE TABLE IF NOT EXISTS tree_move (
    lsn INTEGER PRIMARY KEY,
    old_prefix TEXT NOT NULL,
    new_prefix TEXT NOT NULL
) STRICT;

-- The journal: one record for each mutation, in the transaction of the rows that it changed.
CREATE TABLE IF NOT EXISTS journal (
    lsn INTEGER PRIMARY KEY,
    wall_ns INTEGER NOT NULL,
    op TEXT NOT NULL,
    arguments TEXT NOT NULL
) STRICT;
"""
