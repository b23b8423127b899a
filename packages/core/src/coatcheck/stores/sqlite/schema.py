"""The tables of one namespace. ``@`` in a statement stands for the namespace's prefix.

Indexes cover live rows only, so that history makes no claim slower. What a claim or a query's commit changes
lies in two of them, the lanes and the leases: every index more makes each of them slower.
"""

#: Raised with every change that an older version could not read.
VERSION = 2

#: Shared by all namespaces of a file.
SHARED = """
CREATE TABLE IF NOT EXISTS coatcheck_meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID
"""

TABLES = """
CREATE TABLE IF NOT EXISTS @tasks (
    seq INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    status TEXT NOT NULL,
    version INTEGER NOT NULL,
    generation INTEGER NOT NULL,
    format INTEGER NOT NULL,
    handler TEXT NOT NULL,
    provider TEXT NOT NULL,
    account TEXT NOT NULL,
    tenant TEXT NOT NULL,
    priority INTEGER NOT NULL,
    dedupe_key TEXT,
    dedupe_digest BLOB,
    deadline INTEGER NOT NULL,
    queue_deadline INTEGER,
    stall_limit INTEGER,
    created_at INTEGER NOT NULL,
    scheduled_at INTEGER NOT NULL,
    deadline_at INTEGER NOT NULL,
    queue_deadline_at INTEGER,
    stall_at INTEGER,
    due_at INTEGER,
    updated_at INTEGER NOT NULL,
    finished_at INTEGER,
    next_step TEXT,
    cancel INTEGER NOT NULL DEFAULT 0,
    redue INTEGER NOT NULL DEFAULT 0,
    claims INTEGER NOT NULL DEFAULT 0,
    token TEXT,
    lease_until INTEGER,
    lease_length INTEGER NOT NULL DEFAULT 30000000,
    last_key TEXT,
    job INTEGER NOT NULL DEFAULT 0,
    ghost_until INTEGER,
    lane INTEGER,
    ord1 INTEGER,
    ord2 INTEGER,
    suspect_at INTEGER,
    look_at INTEGER,
    lost_at INTEGER,
    record BLOB NOT NULL
);
CREATE TABLE IF NOT EXISTS @params (seq INTEGER PRIMARY KEY, data BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS @results (seq INTEGER PRIMARY KEY, data BLOB NOT NULL);
CREATE INDEX IF NOT EXISTS @tasks_lane ON @tasks (lane, ord1, ord2, seq) WHERE lane IS NOT NULL;
CREATE INDEX IF NOT EXISTS @tasks_look ON @tasks (look_at) WHERE look_at IS NOT NULL;
CREATE INDEX IF NOT EXISTS @tasks_lost ON @tasks (lost_at) WHERE lost_at IS NOT NULL;
CREATE INDEX IF NOT EXISTS @tasks_suspect ON @tasks (suspect_at) WHERE suspect_at IS NOT NULL;
CREATE UNIQUE INDEX IF NOT EXISTS @tasks_dedupe ON @tasks (tenant, dedupe_key) WHERE dedupe_key IS NOT NULL;
CREATE INDEX IF NOT EXISTS @tasks_account ON @tasks (account) WHERE job > 0;
CREATE INDEX IF NOT EXISTS @tasks_tenant_live ON @tasks (tenant) WHERE job = 1;
CREATE INDEX IF NOT EXISTS @tasks_ended ON @tasks (status, finished_at) WHERE finished_at IS NOT NULL;
CREATE INDEX IF NOT EXISTS @tasks_tenant ON @tasks (tenant, seq);
CREATE INDEX IF NOT EXISTS @tasks_dead ON @tasks (claims) WHERE claims > 2;
CREATE TABLE IF NOT EXISTS @lanes (
    id INTEGER PRIMARY KEY,
    side INTEGER NOT NULL,
    handler TEXT NOT NULL,
    provider TEXT NOT NULL,
    account TEXT NOT NULL,
    tenant TEXT NOT NULL,
    format INTEGER NOT NULL,
    is_ready INTEGER NOT NULL DEFAULT 1,
    blocked_by TEXT,
    key1 INTEGER NOT NULL DEFAULT 0,
    key2 INTEGER NOT NULL DEFAULT 0,
    key3 INTEGER NOT NULL DEFAULT 0
);
CREATE UNIQUE INDEX IF NOT EXISTS @lanes_names ON @lanes (handler, provider, account, tenant, format, side);
CREATE INDEX IF NOT EXISTS @lanes_ready ON @lanes (side, handler, key1, key2, key3, id) WHERE is_ready = 1;
CREATE INDEX IF NOT EXISTS @lanes_blocked ON @lanes (blocked_by, key1, key2, key3, id) WHERE is_ready = 0;
CREATE INDEX IF NOT EXISTS @lanes_turn ON @lanes (key2) WHERE is_ready = 1 AND side = 0;
CREATE INDEX IF NOT EXISTS @lanes_tenant ON @lanes (tenant) WHERE side = 0;
CREATE TABLE IF NOT EXISTS @tenants (tenant TEXT PRIMARY KEY, turn INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS @wakes (resource TEXT PRIMARY KEY, at INTEGER NOT NULL) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS @wakes_at ON @wakes (at);
CREATE TABLE IF NOT EXISTS @limits (
    subject TEXT PRIMARY KEY,
    side TEXT,
    provider TEXT,
    account TEXT,
    tenant TEXT,
    count INTEGER,
    per INTEGER,
    live INTEGER
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS @permits (
    resource TEXT, at INTEGER, count INTEGER NOT NULL, PRIMARY KEY (resource, at)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS @pauses (
    kind TEXT, name TEXT, by TEXT NOT NULL, reason TEXT NOT NULL, since INTEGER NOT NULL,
    PRIMARY KEY (kind, name)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS @gates (
    provider TEXT, account TEXT, side TEXT, until INTEGER NOT NULL, streak INTEGER NOT NULL,
    PRIMARY KEY (provider, account, side)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS @workers (
    worker TEXT PRIMARY KEY,
    handlers TEXT NOT NULL,
    skip TEXT NOT NULL,
    format INTEGER NOT NULL,
    seen_at INTEGER NOT NULL,
    nonce TEXT NOT NULL,
    claimed TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS @counts (status TEXT PRIMARY KEY, count INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS @counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
INSERT OR IGNORE INTO @counters VALUES ('work', 0), ('limits', 0);
"""
