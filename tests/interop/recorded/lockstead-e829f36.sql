BEGIN TRANSACTION;
CREATE TABLE meta (one INTEGER PRIMARY KEY CHECK (one = 1), granted INTEGER NOT NULL);
INSERT INTO "meta" VALUES(1,1795246485067);
CREATE TABLE record (
        space TEXT NOT NULL, key TEXT NOT NULL, part TEXT NOT NULL,
        granted INTEGER NOT NULL, revision INTEGER NOT NULL,
        updated REAL NOT NULL, boot TEXT NOT NULL, namespace TEXT NOT NULL,
        fields TEXT NOT NULL,
        PRIMARY KEY (space, key, part)
    ) WITHOUT ROWID;
INSERT INTO "record" VALUES('audit','revoked','01795246485063-658362c99a5c00f1',1795246485065,1,12735.579441114,'69002ca4-07ef-4114-b00c-51983f765f08','time:[4026531834]+0.0','{"v":"1","at":"1795246485.063118","by":"operator","reason":"for the record","what":"revoked","holder":"recorder:revoked/abc3d4ba396fc97d","owner":"recorder:revoked","incarnation":"1795246485064","token":"1795246485064"}');
INSERT INTO "record" VALUES('lock','closing','',1795246485066,2,12735.579870554,'69002ca4-07ef-4114-b00c-51983f765f08','time:[4026531834]+0.0','{"v":"1","identity":"recorder:closing/75c147ea35c86429","ttl":"300","owner":"recorder:closing","host":"host.example","where":"/srv/app/record_lockstead.py:45","pid":"17578","acquired_at":"1795246485.063269","expires_at":"1795246785.063269","closing":"1"}');
INSERT INTO "record" VALUES('lock','full','',1795246485062,1,12735.578609565,'69002ca4-07ef-4114-b00c-51983f765f08','time:[4026531834]+0.0','{"v":"1","identity":"recorder:full/bbe313dcdfb34577","ttl":"300","owner":"recorder:full","purpose":"publish APT packages","host":"host.example","where":"/srv/app/record_lockstead.py:38","backtrace":"/srv/app/record_lockstead.py:38 in write\n/srv/app/record_lockstead.py:74 in main\n/srv/app/record_lockstead.py:86 in <module>","expected":"600","alert_at":"1795247385.062274","auto_unlock_at":"1795253685.062274","lock_delay":"5","pid":"17578","labels":"{\"run\":\"7\",\"team\":\"packages\"}","acquired_at":"1795246485.062274","expires_at":"1795246785.062274"}');
INSERT INTO "record" VALUES('lock','plain','',1795246485061,1,12735.577927148,'69002ca4-07ef-4114-b00c-51983f765f08','time:[4026531834]+0.0','{"v":"1","identity":"recorder:plain/fb14d4d4dbac84f1","ttl":"300","owner":"recorder:plain","host":"host.example","where":"/srv/app/record_lockstead.py:37","pid":"17578","acquired_at":"1795246485.044685","expires_at":"1795246785.044685"}');
INSERT INTO "record" VALUES('lock','revoked','',1795246485064,2,12735.579318431,'69002ca4-07ef-4114-b00c-51983f765f08','time:[4026531834]+0.0','{"v":"1","identity":"recorder:revoked/abc3d4ba396fc97d","ttl":"300","owner":"recorder:revoked","host":"host.example","where":"/srv/app/record_lockstead.py:42","pid":"17578","acquired_at":"1795246485.062806","expires_at":"1795246785.062806","revoked":"{\"by\":\"operator\",\"reason\":\"for the record\"}"}');
INSERT INTO "record" VALUES('member','closing','1795246485066/7797a0553f8b138a',1795246485067,1,12735.579732358,'69002ca4-07ef-4114-b00c-51983f765f08','time:[4026531834]+0.0','{"v":"1","identity":"7797a0553f8b138a","ttl":"300","owner":"recorder:closing","host":"host.example","where":"/srv/app/record_lockstead.py:46","pid":"17578","acquired_at":"1795246485.063418","expires_at":"1795246785.063418"}');
INSERT INTO "record" VALUES('member','full','1795246485062/2b3c5b397e2ac329',1795246485063,1,12735.578800329,'69002ca4-07ef-4114-b00c-51983f765f08','time:[4026531834]+0.0','{"v":"1","identity":"2b3c5b397e2ac329","ttl":"300","owner":"recorder:full","host":"host.example","where":"/srv/app/record_lockstead.py:40","pid":"17578","acquired_at":"1795246485.062478","expires_at":"1795246785.062478"}');
COMMIT;
PRAGMA application_id = 1282368363;
PRAGMA user_version = 1;
-- ticket full lockstead1.WyJzcWxpdGU6Ly8vL3RtcC9yZWNvcmRpbmcvbG9ja3MuZGIiLCJmdWxsIiwicmVjb3JkZXI6ZnVsbC9iYmUzMTNkY2RmYjM0NTc3IiwiMTc5NTI0NjQ4NTA2MiIsMzAwLjBd
-- ticket plain lockstead1.WyJzcWxpdGU6Ly8vL3RtcC9yZWNvcmRpbmcvbG9ja3MuZGIiLCJwbGFpbiIsInJlY29yZGVyOnBsYWluL2ZiMTRkNGQ0ZGJhYzg0ZjEiLCIxNzk1MjQ2NDg1MDYxIiwzMDAuMF0
-- ticket closing lockstead1.WyJzcWxpdGU6Ly8vL3RtcC9yZWNvcmRpbmcvbG9ja3MuZGIiLCJjbG9zaW5nIiwicmVjb3JkZXI6Y2xvc2luZy83NWMxNDdlYTM1Yzg2NDI5IiwiMTc5NTI0NjQ4NTA2NiIsMzAwLjBd
