/* Shared and exclusive leases of one key: no reader holds the key while a writer does.

   A *group* is a record under the key whose mode is shared; readers are its members. In it: a reader whose every
   request may be lost, or arrive late, or several times; a sibling, a reader whose requests come through at once, and
   which gives out tickets; a writer, as unreliable as the reader; and an exclusive contender of an old version, which
   knows nothing of readers. Every answer may be lost. Everybody may stand still anywhere for any time. Nothing is
   bounded but this: at any instant at most one message is under way for which nobody waits any more.

   -DDOWNGRADE lets the writer become a reader (without the old contender and tickets). -DALONE_R and -DALONE_W are
   worlds without faults, for the claims of progress: one of the two, from every state that others can have left.
   Not in it: reads without age (members.pml has them), drift, breaks, records marked as ended, the lock-delay, tokens.

   [n] is a rule in docs/protocol.md, [Sn] one of shared leases, whose tests carry its number (pytest -k s03); a name in
   backquotes is defined in core/src/lockstead/protocol/. Capitals after #ifdef are faults: the model must fail with any
   of them, but for the one that says it is harmless. */

/* Ticks: a deadline counts from the send, a record's life from the write. Margins of drift are in contenders.pml. */
#ifndef LIFE
#define LIFE    1                      /* `expiry.record_lifetime`; a registration is judged like a lease */
#endif
#ifdef NO_MARGIN
#define BELIEF  2                      /* one more than LIFE */
#else
#define BELIEF  LIFE                   /* `expiry.holder_deadline` */
#endif

#if defined(ALONE_W) || defined(ALONE_R) || defined(TOGETHER)
#define IS_ALONE
#define CAN_FAIL false
#else
#define CAN_FAIL true
#endif
#if defined(DOWNGRADE) || defined(IS_ALONE)
#define NO_OLD_CONTENDER
#else
#define TICKETS
#endif

/* --- the store: the key's record, and the reader's registration ------------------------------------------------- */

mtype:record = { NOBODY, GROUP, WRITTEN, EARLIER, OLD }; /* the writer's, or of an earlier wish of it */
mtype:record record = NOBODY;
byte age;
bit  wanted;                           /* a writer waits, and has marked the record [S4] */

bit  is_registered;
bit  is_listed;                        /* ... under the incarnation of the group that stands now */
byte registered_age;

byte sibling;                          /* ticks until the sibling's deadline; its registration is listed for as long */
bit  ticket;                           /* the reader has one, and the registration of its issuer still stands */
byte old;                              /* ticks until the old contender's deadline */

/* What somebody has seen of the record or the registration, or expects of it. */
#define GONE  0                        /* another incarnation, or none */
#define SAME  1                        /* this incarnation, written to since */
#define EXACT 2                        /* this incarnation and this revision */

mtype:command = { FOUND, REPLACE_BY_GROUP, REGISTER, EXTEND_MINE, WITHDRAW, EXTEND, MARK, UNMARK, END_GROUP,
                  CREATE, REPLACE, REMOVE, REMOVE_DEAD, SHARE, REMOVE_EXACTLY };
typedef Request { mtype:command kind; byte expects; byte of_mine };
mtype:call = { NONE, ASKED, DONE, REFUSED };
typedef Call { mtype:call state = NONE; Request request; byte left };
#define R 0                            /* the reader */
#define W 1                            /* the writer */
Call    call[2];
Request late;
bit     applied;
#if defined(TOGETHER) && !defined(LEFT_TO_ANYBODY)
#define LEFT_TO_THE_WRITER 1           /* a waiting writer is the heir of the group [S8] */
#else
#define LEFT_TO_THE_WRITER 0
#endif
bit     heir;                          /* the last reader left the key to the writer that waits */

byte group;                            /* the group that the reader joined */
byte mine;                             /* the reader's registration, as it knows it */
byte marked;                           /* the record that the reader is about to end as the last one out */
byte seen;                             /* by the writer's last look, or its lease */
byte judged;                           /* a registration that the writer is about to remove as dead */

bit  reads;
byte registered_left, record_left;     /* ticks until the reader's two deadlines */
byte renewed_left;                     /* of a registration just renewed, until the record was read too */
bit  held;
byte left;                             /* ticks until the writer's deadline */

#ifdef BELIEVES_THE_REGISTRATION_ALONE
#define READS (reads && registered_left > 0)
#elif defined(BELIEVES_THE_RECORD_ALONE)
#define READS (reads && record_left > 0)
#else
#define READS (reads && registered_left > 0 && record_left > 0) /* until the earlier of the two [S2] */
#endif
#define WRITES (held && left > 0)

/* THE PROMISE. */
#define promise() assert(!((READS || sibling > 0) && (WRITES || old > 0)) && !(WRITES && old > 0))

inline clear(q)       { q.kind = 0; q.expects = 0; q.of_mine = 0 }
inline copy(from, to) { to.kind = from.kind; to.expects = from.expects; to.of_mine = from.of_mine }
inline wrote(what)    { what = (what == EXACT -> SAME : what) }

inline write() {
    wrote(call[0].request.expects); wrote(call[1].request.expects); wrote(late.expects);
    wrote(group); wrote(seen); wrote(marked); age = 0
}
inline next(kind_) {
    call[0].request.expects = GONE; call[1].request.expects = GONE; late.expects = GONE;
    group = GONE; seen = GONE; marked = GONE;
    record = kind_; age = 0; wanted = 0; is_listed = 0; ticket = 0
}
inline write_mine() {
    wrote(call[0].request.of_mine); wrote(call[1].request.of_mine); wrote(late.of_mine);
    wrote(mine); wrote(judged); registered_age = 0
}
inline end_mine() {
    call[0].request.of_mine = GONE; call[1].request.of_mine = GONE; late.of_mine = GONE; mine = GONE; judged = GONE;
    is_registered = 0; is_listed = 0; registered_age = 0
}

#ifdef REPLACED_BY_INCARNATION_ALONE
#define MAY_REPLACE(q) (q.expects != GONE)
#else
#define MAY_REPLACE(q) (q.expects == EXACT) /* [S6] */
#endif
#ifdef LAST_OUT_BY_INCARNATION_ALONE
#define MAY_END(q) (q.expects != GONE)
#else
#define MAY_END(q) (q.expects == EXACT)
#endif
#ifdef UNMARKED_BY_INCARNATION_ALONE   /* harmless: the revision moves all the same, only another's mark is undone */
#define MAY_UNMARK(q) (q.expects != GONE)
#else
#define MAY_UNMARK(q) (q.expects == EXACT)
#endif
#ifdef DEAD_REMOVED_BY_INCARNATION_ALONE
#define MAY_REMOVE_DEAD(q) (q.of_mine != GONE)
#else
#define MAY_REMOVE_DEAD(q) (q.of_mine == EXACT) /* [4]: a member that renewed in between is alive */
#endif

inline apply(q) {
  d_step {
    applied = 1;
    if
    :: q.kind == FOUND && record == NOBODY -> next(GROUP); q.expects = EXACT
    :: q.kind == REPLACE_BY_GROUP && record != NOBODY && MAY_REPLACE(q) -> next(GROUP); q.expects = EXACT
    :: q.kind == CREATE && record == NOBODY -> next(WRITTEN); heir = 0; q.expects = EXACT
    :: q.kind == REPLACE && record != NOBODY && MAY_REPLACE(q) -> next(WRITTEN); heir = 0; q.expects = EXACT
    :: q.kind == EXTEND && record != NOBODY && q.expects != GONE -> write()
    :: q.kind == MARK && record == GROUP && q.expects != GONE -> write(); wanted = 1; q.expects = EXACT
    :: q.kind == UNMARK && record == GROUP && MAY_UNMARK(q) -> write(); wanted = 0
    :: q.kind == END_GROUP && record == GROUP && MAY_END(q) -> next(NOBODY); heir = LEFT_TO_THE_WRITER
    :: q.kind == REMOVE && record != NOBODY && q.expects != GONE -> next(NOBODY)
    :: q.kind == REMOVE_EXACTLY && record != NOBODY && q.expects == EXACT -> next(NOBODY)
    :: q.kind == SHARE && (record == WRITTEN || record == EARLIER) && q.expects != GONE -> write(); record = GROUP
    :: q.kind == REGISTER && !is_registered ->
        is_registered = 1; registered_age = 0; is_listed = (q.expects != GONE && record == GROUP); q.of_mine = EXACT
    :: q.kind == EXTEND_MINE && is_registered && q.of_mine != GONE -> write_mine()
    :: q.kind == WITHDRAW && is_registered && q.of_mine != GONE -> end_mine()
    :: q.kind == REMOVE_DEAD && is_registered && MAY_REMOVE_DEAD(q) -> end_mine()
    :: else -> applied = 0
    fi
  }
}

/* --- messages --------------------------------------------------------------------------------------------------- */

inline send(who, kind_, expects_, of_mine_) {
    call[who].state = ASKED;
    call[who].request.kind = kind_; call[who].request.expects = expects_; call[who].request.of_mine = of_mine_;
    call[who].left = (kind_ == REGISTER || kind_ == EXTEND_MINE || kind_ == EXTEND
                      || kind_ == CREATE || kind_ == REPLACE
#ifdef FIRST_READER_BELIEVES_ITS_GRANT
                      || kind_ == FOUND
#endif
                      -> BELIEF : 0)
}
inline hang_up(who) { call[who].state = NONE; call[who].left = 0; clear(call[who].request) }
#define IS_DONE(who)    (call[who].state == DONE)
#define IS_REFUSED(who) (call[who].state == REFUSED)
#define IS_ASKING(who)  (call[who].state != NONE)

/* `OutcomeUnknown`: the request was lost, or its answer was, or it is late. */
inline unknown(who) {
    (CAN_FAIL);
    if
    :: call[who].state == ASKED && late.kind == 0 -> copy(call[who].request, late)
    :: true
    fi;
    hang_up(who)
}
inline deliver(p) {
    if
    :: CAN_FAIL && late.kind == 0 -> copy(call[p].request, late); /* it will arrive once more */
        apply(call[p].request)
    :: apply(call[p].request)
    fi;
    if
    :: applied -> call[p].state = DONE
    :: else    -> call[p].state = REFUSED; call[p].left = 0
    fi;
    call[p].request.kind = 0; applied = 0
}
inline deliver_late() {
    apply(late); applied = 0;
    if
    :: clear(late)
    :: CAN_FAIL ->                     /* and once more, but what it created is another's */
        late.expects = (late.kind == MARK && late.expects == EXACT -> SAME : late.expects);
        late.of_mine = (late.kind == REGISTER -> GONE : late.of_mine);
        late.expects = (late.kind == FOUND || late.kind == CREATE || late.kind == REPLACE_BY_GROUP
                        || late.kind == REPLACE -> GONE : late.expects)
    fi
}

active proctype network() {
    do
    :: atomic { call[R].state == ASKED -> deliver(R) }
#ifndef TOGETHER
    :: atomic { call[W].state == ASKED -> deliver(W) }
#endif
    :: atomic { late.kind != 0 -> deliver_late() }
    :: atomic { late.kind != 0 -> clear(late) } /* lost after all */
    od
}
#ifdef TOGETHER
active proctype network_of_w() {       /* of its own, so that weak fairness is fair to its requests */
    do
    :: atomic { call[W].state == ASKED -> deliver(W) }
    od
}
#endif

inline pass(ticks) { ticks = (ticks > 0 -> ticks - 1 : 0) }

#ifdef ALONE_R
bit stays;                             /* the sibling reads for ever */
#define STAYS stays
#else
#define STAYS false
#endif
active proctype time() {
    do
    :: d_step {
#ifdef TOGETHER
        timeout ->                     /* who is alive is prompt */
#endif
        age = (record != NOBODY && age < LIFE && !STAYS -> age + 1 : age);
        registered_age = (is_registered && registered_age < LIFE -> registered_age + 1 : registered_age);
        sibling = (sibling > 0 && !STAYS -> sibling - 1 : sibling); pass(old);
        pass(registered_left); pass(record_left); pass(renewed_left); pass(left);
        pass(call[0].left); pass(call[1].left);
        ticket = (sibling > 0 -> ticket : 0)
    }
    od
}

#ifdef IS_ALONE
bit is_begun;
#else
bit is_begun = 1;
#endif

/* --- the reader ------------------------------------------------------------------------------------------------- */

#define IS_LIVE_GROUP (record == GROUP && age < LIFE)
#ifdef JOINS_WITHOUT_LOOKING
#define MAY_JOIN true
#elif defined(JOINS_A_MARKED_GROUP)
#define MAY_JOIN (group != GONE && record == GROUP)
#elif defined(JOIN_IGNORES_THE_INCARNATION)
#define MAY_JOIN (record == GROUP && !wanted)
#else
#define MAY_JOIN (group != GONE && record == GROUP && (!wanted || by_ticket)) /* [S3]; a ticket passes the mark [S9] */
#endif
#ifdef READ_WITHOUT_AGE
#define WORTH BELIEF
#else
#define WORTH (BELIEF > age -> BELIEF - age : 0) /* `expiry.deadline_by_read` */
#endif
#ifdef LATE_SUCCESS_REVIVES
#define MAY_LENGTHEN reads
#else
#define MAY_LENGTHEN READS
#endif

inline lengthen(which, ticks) { which = (which > ticks -> which : ticks); promise() }
inline stop() { reads = 0; registered_left = 0; record_left = 0; renewed_left = 0 }

#ifndef ALONE_W
active proctype reader() {
    bit by_ticket, is_proved, owes_proof;

    is_begun;
    do
    :: atomic {                        /* a wish: the nonce of its registration is fresh [S2] */
        end_mine(); group = GONE;
        if
        :: late.kind == REGISTER || late.kind == EXTEND_MINE || late.kind == WITHDRAW -> clear(late)
        :: else
        fi
    };
look:                                  /* `readers.attempt_shared` [S1] */
    if
    :: atomic { record == NOBODY && !heir -> send(R, FOUND, GONE, GONE) }
    :: atomic { record != NOBODY && age >= LIFE -> send(R, REPLACE_BY_GROUP, EXACT, GONE) }
    :: atomic { IS_LIVE_GROUP && !wanted -> group = SAME; goto register }
#ifdef TICKETS
    :: atomic { sibling > 0 && record == GROUP -> group = SAME; ticket = 1; by_ticket = 1; goto register }
#endif
    :: atomic { record != NOBODY && CAN_FAIL -> goto again } /* out of time */
    fi;
    if
    :: atomic { IS_DONE(R) -> group = (call[R].request.expects != GONE -> SAME : GONE);
#ifdef FIRST_READER_BELIEVES_ITS_GRANT
        record_left = call[R].left; registered_left = call[R].left; reads = 1; promise();
#endif
        hang_up(R) }
    :: atomic { IS_REFUSED(R) -> hang_up(R); goto look }
    :: atomic { unknown(R); goto look } /* it joins whatever group it finds there, so it needs no adoption */
    fi;

register:                              /* `members._register` [S2] */
#ifdef READ_BEFORE_REGISTERING
    if
    :: record_left == 0 -> goto read
    :: record_left > 0
    fi;
#endif
    atomic { send(R, REGISTER, group, GONE) };
    if
    :: atomic { IS_DONE(R) -> goto registered }
    :: atomic { IS_REFUSED(R) -> hang_up(R) }
    :: atomic { unknown(R) }
    :: atomic { unknown(R); goto again }
    fi;
    if                                 /* an earlier attempt may have landed: its age is unknown, so extend it */
    :: atomic { !is_registered -> goto register }
    :: atomic { is_registered -> mine = SAME }
    fi;
    atomic { send(R, EXTEND_MINE, GONE, mine); mine = GONE };
    if
    :: atomic { IS_DONE(R) -> goto registered }
    :: atomic { IS_REFUSED(R) -> hang_up(R); goto register }
    :: atomic { unknown(R); goto again }
    fi;
registered:
    atomic {
        mine = (call[R].request.of_mine != GONE -> SAME : GONE); lengthen(registered_left, call[R].left); hang_up(R)
    };
#ifdef READ_BEFORE_REGISTERING
    goto begin;
#endif
#ifdef TICKETS
    if                                 /* the issuer's registration may be read before the record, or after it */
    :: atomic { by_ticket && ticket -> is_proved = 1 }
    :: true
    fi;
#endif

read:                                  /* `members._join` [S3]: after the answer that proves the registration */
    if
    :: atomic { MAY_JOIN ->
        owes_proof = (by_ticket && wanted && !is_proved); lengthen(record_left, WORTH); goto joined }
    :: atomic { MAY_JOIN -> owes_proof = (by_ticket && wanted && !is_proved) } /* too little is left: extend it */
    :: atomic { !MAY_JOIN -> goto leave }
    :: CAN_FAIL -> goto leave
    fi;
    atomic { send(R, EXTEND, group, GONE) };
    if
    :: atomic { IS_DONE(R) -> lengthen(record_left, call[R].left); hang_up(R) }
    :: atomic { IS_REFUSED(R) -> hang_up(R); goto leave }
    :: atomic { unknown(R); goto read }
    fi;
joined:
#ifdef READ_BEFORE_REGISTERING
    goto register;
#endif
#if !defined(TICKET_CHECKED_BEFORE_REGISTERING) && defined(TICKETS)
    if                                 /* [S9]: no list can have been empty before our registration was in it */
    :: atomic { !owes_proof || ticket }
    :: atomic { owes_proof && !ticket -> goto leave }
    fi;
#endif
begin:
#ifdef ALONE_R
progress_begin:
#endif
    atomic { reads = 1; is_proved = 0; owes_proof = 0; promise() };
#ifdef ALONE_R
progress_work:
#endif
work:                                  /* `members.renew_member`: the registration first; a mark does not end it */
    if
#ifndef TOGETHER                       /* there it works for a while, and leaves */
    :: atomic { reads -> send(R, EXTEND_MINE, GONE, mine) }
    :: atomic { reads && wanted && group != GONE -> send(R, UNMARK, EXACT, GONE) } /* [S7]: its sign of life is stale */
#endif
#ifdef WITHDRAWS_WHILE_IT_BELIEVES
    :: goto leave
#else
    :: atomic { stop(); goto leave }
#endif
    fi;
    if
    :: atomic { IS_DONE(R) -> renewed_left = call[R].left; hang_up(R) }
    :: atomic { IS_REFUSED(R) -> hang_up(R); goto refused }
    :: atomic { unknown(R); goto work }
    fi;
    if
    :: atomic { group != GONE && renewed_left > 0 -> goto renewed }
    :: atomic { group != GONE && renewed_left == 0 -> goto work }
    :: atomic { group == GONE -> stop(); goto leave }
    :: atomic { group != GONE -> send(R, EXTEND, group, GONE) }
    :: atomic { renewed_left = 0; goto work } /* the read has no answer */
    fi;
    if
    :: atomic { IS_DONE(R) -> goto extended }
    :: atomic { IS_REFUSED(R) -> stop(); hang_up(R); goto leave }
    :: atomic { unknown(R); renewed_left = 0; goto work }
    fi;
refused:                               /* a mark that could not be removed is no loss; a registration that is gone is */
    if
    :: atomic { is_registered && mine != GONE -> goto work }
    :: atomic { !(is_registered && mine != GONE) -> stop(); goto leave }
    fi;
renewed:
    atomic {
        if
        :: MAY_LENGTHEN -> lengthen(registered_left, renewed_left); lengthen(record_left, WORTH)
        :: !MAY_LENGTHEN -> stop()     /* once past, for good */
        fi;
        renewed_left = 0; goto work
    };
extended:
    atomic {
        if
        :: MAY_LENGTHEN -> lengthen(registered_left, renewed_left); lengthen(record_left, call[R].left)
        :: !MAY_LENGTHEN -> stop()
        fi;
        renewed_left = 0; hang_up(R); goto work
    };

leave:                                 /* `members.take_back`: after the reader has stopped */
    atomic {
#ifndef WITHDRAWS_WHILE_IT_BELIEVES
        stop();
#endif
        send(R, WITHDRAW, GONE, mine)
    };
    if
    :: atomic { IS_DONE(R) || IS_REFUSED(R) -> hang_up(R) }
    :: atomic { unknown(R); goto leave }
    :: atomic { unknown(R) }
    fi;
#ifdef WITHDRAWS_WHILE_IT_BELIEVES
    atomic { stop() };
#endif
    if                                 /* `groups.end_if_wanted` [S8]: the last one out */
#ifdef LAST_OUT_WITHOUT_A_MARK
    :: atomic { group != GONE && record == GROUP -> marked = EXACT }
#else
    :: atomic { group != GONE && record == GROUP && wanted -> marked = EXACT }
#endif
#ifdef TOGETHER
    :: atomic { !(group != GONE && record == GROUP && wanted) -> goto again }
#else
    :: goto again
#endif
    fi;
    if
    :: atomic { !(is_registered && is_listed) && sibling == 0 -> send(R, END_GROUP, marked, GONE); marked = GONE }
    :: atomic { (is_registered && is_listed) || sibling > 0 -> goto again }
    fi;
    if
    :: atomic { IS_DONE(R) || IS_REFUSED(R) -> hang_up(R) }
    :: atomic { unknown(R) }
    fi;
again:
    atomic {
        stop(); mine = GONE; group = GONE; marked = GONE;
        ticket = 0; by_ticket = 0; is_proved = 0; owes_proof = 0
    }
    od
}
#endif

/* --- the sibling: a reader whose requests come through at once -------------------------------------------------- */

#ifdef ALONE_R
active proctype another() {
    do
    :: atomic { stays && record == GROUP -> write(); /* and removes the mark of a writer that is dead [S7] */
#ifndef MARK_OF_A_DEAD_WRITER_STAYS
        wanted = 0
#endif
        }
    od
}
#elif !defined(ALONE_W) && !defined(TOGETHER)
active proctype another() {
    do
    :: atomic { sibling == 0 && IS_LIVE_GROUP && !wanted -> sibling = BELIEF - age; promise() } /* moves no revision */
    :: atomic { sibling > 0 && record == GROUP -> write(); sibling = BELIEF; promise() }
    :: atomic { sibling > 0 && record == GROUP && wanted -> write(); wanted = 0 } /* [S7] */
    :: atomic { sibling > 0 -> sibling = 0; ticket = 0 }
    od
}
#endif

/* --- the writer ------------------------------------------------------------------------------------------------- */

#define IS_EMPTY (!(is_registered && is_listed) && sibling == 0)
inline believe(ticks) { left = ticks; promise() }

#ifndef ALONE_R
active proctype writer() {
    is_begun;
    do
    :: true;
create:                                /* `acquire.create` */
    atomic { send(W, CREATE, GONE, GONE) };
    if
    :: atomic { IS_DONE(W) -> goto granted }
    :: atomic { IS_REFUSED(W) -> hang_up(W) }
    :: atomic { unknown(W) }
    fi;
look:
    if
    :: atomic { record == NOBODY -> goto create }
    :: atomic { record == WRITTEN -> seen = SAME; goto adopt }
    :: atomic { record != NOBODY && record != WRITTEN && age >= LIFE -> seen = EXACT; goto replace }
    :: atomic { record == GROUP && wanted -> seen = EXACT; goto list } /* the mark of any writer serves all */
#ifdef TOGETHER
    :: atomic { record == GROUP && !wanted -> seen = SAME; goto mark }
#else
    :: atomic { record == GROUP -> seen = SAME; goto mark } /* none, or another sign of life */
#endif
    :: atomic { record != NOBODY && record != WRITTEN && CAN_FAIL -> goto over } /* out of time */
    fi;
mark:                                  /* [S4] */
#ifdef LISTS_WITHOUT_A_MARK
    atomic { seen == SAME; seen = EXACT; goto list };
#endif
#ifdef LISTS_BEFORE_THE_MARK
    if
    :: atomic { IS_EMPTY }
    :: atomic { !IS_EMPTY -> seen = GONE; goto over }
    fi;
#endif
    atomic { send(W, MARK, seen, GONE); seen = GONE };
    if
    :: atomic { IS_DONE(W) -> seen = call[W].request.expects; hang_up(W);
#ifdef LISTS_BEFORE_THE_MARK
        goto replace
#endif
        }
    :: atomic { IS_REFUSED(W) -> hang_up(W); goto look }
    :: atomic { unknown(W); goto look }
#ifdef LISTS_WITHOUT_AN_ANSWER_TO_THE_MARK
    :: atomic { record == GROUP -> unknown(W); seen = EXACT }
#endif
    fi;
list:                                  /* `groups.marked_and_empty` [S5]: after an answer that shows the mark */
    if
    :: atomic { IS_EMPTY -> goto replace }
    :: atomic { is_registered && is_listed && registered_age >= LIFE -> judged = EXACT }
    :: atomic { !IS_EMPTY && !(is_registered && is_listed && registered_age >= LIFE) -> seen = GONE; goto look }
    :: atomic { !IS_EMPTY && CAN_FAIL -> seen = GONE; goto over }
#ifdef REPLACES_AT_THE_BOUND
    :: atomic { !IS_EMPTY -> goto replace }
#endif
    fi;
    atomic { send(W, REMOVE_DEAD, GONE, judged); judged = GONE };
    if
    :: atomic { IS_DONE(W) || IS_REFUSED(W) -> hang_up(W) }
    :: atomic { unknown(W) }
    fi;
#ifdef NOT_LISTED_AGAIN
    goto replace;
#else
    goto list;
#endif
adopt:                                 /* `acquire._adopt` */
    atomic { send(W, EXTEND, seen, GONE); seen = GONE };
    if
    :: atomic { IS_DONE(W) -> goto granted }
    :: atomic { IS_REFUSED(W) -> hang_up(W); goto look }
    :: atomic { unknown(W); goto look }
    fi;
replace:                               /* [S6]: exactly the state that showed the mark, or that was over */
    atomic { send(W, REPLACE, seen, GONE); seen = GONE };
    if
    :: atomic { IS_DONE(W) -> goto granted }
    :: atomic { IS_REFUSED(W) -> hang_up(W); goto look }
    :: atomic { unknown(W); goto look }
    fi;
granted:
#ifdef IS_ALONE
progress_granted:
#endif
    atomic { seen = (call[W].request.expects != GONE -> SAME : GONE); held = 1; believe(call[W].left); hang_up(W) };
#ifdef IS_ALONE
progress_held:
#endif
    do                                 /* `renew.renew` */
    :: atomic { held && !IS_ASKING(W) -> send(W, EXTEND, seen, GONE) }
    :: atomic { IS_DONE(W) ->
        if
        :: WRITES -> believe(call[W].left)
        :: !WRITES -> held = 0; left = 0
        fi;
        hang_up(W) }
    :: atomic { IS_REFUSED(W) -> held = 0; left = 0; hang_up(W) }
    :: atomic { CAN_FAIL && IS_ASKING(W) -> unknown(W) }
    :: atomic { held = 0; left = 0; break }
#ifdef DOWNGRADE
    :: atomic { WRITES && !IS_ASKING(W) && sibling == 0 -> /* [S10]: the sibling is what it registered before */
        held = 0; sibling = left; left = 0; send(W, SHARE, seen, GONE); promise(); goto downgrade }
#endif
    od;
    if
    :: atomic { IS_DONE(W) || IS_REFUSED(W) -> hang_up(W) }
    :: atomic { CAN_FAIL && call[W].state == ASKED -> unknown(W) }
    :: atomic { !IS_ASKING(W) }
    fi;
#ifdef DOWNGRADE
    goto remove;
downgrade:
    if
    :: atomic { IS_DONE(W) -> hang_up(W); goto end } /* the sibling goes on by itself */
    :: atomic { IS_REFUSED(W) -> hang_up(W); sibling = 0; goto end }
    :: atomic { unknown(W); send(W, SHARE, seen, GONE); goto downgrade }
    :: atomic { unknown(W) }           /* it releases before it knows */
    fi;
    atomic { sibling = 0 };
    if
    :: atomic { record == WRITTEN && seen != GONE ->
#ifdef DOWNGRADED_REMOVES_BY_INCARNATION
        send(W, REMOVE, seen, GONE)
#else
        send(W, REMOVE_EXACTLY, EXACT, GONE)
#endif
        }
    :: atomic { !(record == WRITTEN && seen != GONE) -> goto end }
    fi;
    if
    :: atomic { IS_DONE(W) || IS_REFUSED(W) -> hang_up(W); goto end }
    :: atomic { unknown(W); goto end }
    fi;
#endif
remove:                                /* `release.remove` */
    atomic { send(W, REMOVE, seen, GONE) };
    if
    :: atomic { IS_DONE(W) || IS_REFUSED(W) -> hang_up(W) }
    :: atomic { unknown(W) }
    fi;
over:                                  /* `release.sweep`; who gives up removes the mark [S7] */
    if
    :: atomic { record == WRITTEN -> seen = SAME; goto remove }
    :: atomic { record == GROUP && wanted -> send(W, UNMARK, EXACT, GONE) }
    :: atomic { goto end }
    fi;
    if
    :: atomic { IS_DONE(W) || IS_REFUSED(W) -> hang_up(W) }
    :: atomic { unknown(W) }
    fi;
end:
    atomic {                           /* the next wish has another holder */
        seen = GONE;
        record = (record == WRITTEN -> EARLIER : record);
        if :: late.kind == CREATE || late.kind == REPLACE -> clear(late) :: else fi
    }
    od
}
#endif

/* --- an exclusive contender of an old version, whose requests come through at once ------------------------------ */

#ifndef NO_OLD_CONTENDER
active proctype contender() {
    do
    :: atomic { record == NOBODY || age >= LIFE -> next(OLD); old = BELIEF; promise() }
    :: atomic { record == OLD && old > 0 -> write(); old = BELIEF; promise() }
    :: atomic { record == OLD && old > 0 -> old = 0; next(NOBODY) }
    od
}
#endif

#ifdef TOGETHER
init { is_begun = 1 }
#elif defined(IS_ALONE)
init {
    atomic {                           /* any state that the dead can have left, and any message of theirs */
        if :: record = NOBODY :: record = GROUP :: record = EARLIER :: record = OLD fi;
        if :: age = 0 :: record != NOBODY -> age = LIFE fi;
        if :: record == GROUP -> wanted = 1 :: true fi;
        if :: is_registered = 1; is_listed = (record == GROUP) :: true fi;
#ifdef ALONE_R
        if :: record == GROUP -> stays = 1; age = 0; sibling = BELIEF :: true fi;
#endif
        if
        :: true
        :: late.kind = FOUND
        :: late.kind = CREATE
        :: late.kind = EXTEND; late.expects = SAME
        :: late.kind = MARK; late.expects = SAME
        :: late.kind = UNMARK; late.expects = EXACT
        :: late.kind = REGISTER; late.expects = SAME
        fi;
        is_begun = 1
    }
}
#endif
