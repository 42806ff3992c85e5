-- How each rule stands for each series of its metric. One that never was beyond its threshold has no row.
CREATE TABLE dutiful_alert (
    rule       TEXT    NOT NULL,
    series     TEXT    NOT NULL,
    state      TEXT    NOT NULL CHECK (state IN ('ok', 'pending', 'firing')),
    value      REAL,
    since      INTEGER NOT NULL,
    calm_since INTEGER,
    fired_at   INTEGER,
    cleared_at INTEGER,
    summary    TEXT    NOT NULL,
    PRIMARY KEY (rule, series)
) STRICT, WITHOUT ROWID;

-- When somebody looked last, and until when there is to be another look: one row.
CREATE TABLE dutiful_alert_look (
    only_one INTEGER NOT NULL PRIMARY KEY CHECK (only_one = 1),
    at       INTEGER NOT NULL,
    until    INTEGER NOT NULL
) STRICT;
