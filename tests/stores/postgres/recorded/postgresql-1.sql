-- The tables of version 1, as pg_dump shows them after a lock was released and another one taken.
CREATE SCHEMA lockstead;
CREATE TABLE lockstead.meta (
    one integer NOT NULL,
    version integer NOT NULL,
    "least" integer NOT NULL,
    swept timestamp with time zone NOT NULL,
    CONSTRAINT meta_one_check CHECK ((one = 1))
);
CREATE TABLE lockstead.record (
    space text NOT NULL COLLATE pg_catalog."C",
    key text NOT NULL COLLATE pg_catalog."C",
    part text NOT NULL COLLATE pg_catalog."C",
    granted bigint NOT NULL,
    revision bigint NOT NULL,
    updated timestamp with time zone NOT NULL,
    fields jsonb,
    CONSTRAINT record_fields_check CHECK ((jsonb_typeof(fields) = 'object'::text))
)
WITH (fillfactor='50');
INSERT INTO lockstead.meta VALUES (1, 1, 1, '2026-11-21 11:30:47.771603+00');
INSERT INTO lockstead.record VALUES ('lock', 'released', '', 1795260647773, 2, '2026-11-21 11:30:47.774905+00', NULL);
INSERT INTO lockstead.record VALUES ('lock', 'held', '', 1795260647776, 1, '2026-11-21 11:30:47.775623+00', '{"v": "1", "pid": "15468", "ttl": "3600", "host": "vm", "owner": "recorder", "where": "recorder.py:11", "purpose": "to be read by later versions", "identity": "recorder/45e67654acdd250a", "expires_at": "1795264247.775342", "acquired_at": "1795260647.775342"}');
ALTER TABLE ONLY lockstead.meta
    ADD CONSTRAINT meta_pkey PRIMARY KEY (one);
ALTER TABLE ONLY lockstead.record
    ADD CONSTRAINT record_pkey PRIMARY KEY (space, key, part);
