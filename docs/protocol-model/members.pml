/* One lease, a member that joins it by a ticket, a sibling that works beside it, and who ends it (a release, or a
   reclaim; with -DENDERS=2 both at once): nobody works under a lease whose record was removed or replaced.

   In it: attach, a member's renewal, withdraw, close, drain, remove, and the takeover of a dead lease. Every request
   of the member and of who ends the lease may be lost, or arrive late, or several times; every answer may be lost.
   Everybody may stand still anywhere for any time. Nothing is bounded but this: the member attaches once, and at any
   instant at most one message is under way for which nobody waits any more. How the next holder comes in is told by
   contenders.pml, and so is what is not explained here.

   [n] is a rule in docs/protocol.md; a name in backquotes is defined in core/src/lockstead/protocol/. Capitals after
   #ifdef are faults. */

/* Time is whole ticks of the clock by which contenders judge. A deadline is kept as the ticks left until it. */
#define TTL      2
#define DRIFT    1                     /* the margin on either side */
#define GAIN     (2 * DRIFT)           /* by this the judge's clock may outrun a member's within a ttl */
#define BELIEF   (TTL - DRIFT + GAIN)  /* `expiry.holder_deadline`, if the clocks differ as much as they may */
#define LIFE     (TTL + DRIFT)         /* `expiry.record_lifetime`; a registration is judged like a lease */

/* --- the store: the record of the lease, and the registration of the member ------------------------------------- */

bit  stands = true;                    /* the record of this lease; false: removed, or replaced by another's */
byte age;                              /* ticks since its last change */
bit  closing;

bit  is_registered;
byte registered_age;

byte sibling = BELIEF;                 /* ticks of belief that the sibling has left; 0: gone, and withdrawn */

/* What somebody has seen of the registration, or expects of it. The lease has one incarnation here. */
#define GONE  0                        /* another incarnation, or none */
#define SAME  1                        /* this incarnation, written to since */
#define EXACT 2                        /* this incarnation and this revision */

mtype:command = { REGISTER, EXTEND_MINE, WITHDRAW, READ, EXTEND, CLOSE, REMOVE_DEAD, REMOVE };
bit applied;                           /* whether the last command was */

typedef Request { mtype:command kind; byte expects };

/* --- messages --------------------------------------------------------------------------------------------------- */

mtype:call = { NONE, ASKED, DONE, REFUSED };

typedef Call {
    mtype:call state = NONE;
    Request request;
    byte left;
    bit closing                        /* what the answer shows */
};
#define MEMBER 0                       /* the others are those who end the lease */
#ifndef ENDERS
#define ENDERS 1
#endif
Call    call[1 + ENDERS];
Request late;
byte    judged[1 + ENDERS];               /* a registration that is about to be removed as dead */
byte    mine;                          /* the registration, as the member knows it */

inline clear(q)       { q.kind = 0; q.expects = 0 }
inline copy(from, to) { to.kind = from.kind; to.expects = from.expects }

inline wrote(what)    { what = (what == EXACT -> SAME : what) }
inline each_wrote() {
    wrote(late.expects); wrote(call[1].request.expects); wrote(judged[1])
#if ENDERS == 2
    ; wrote(call[2].request.expects); wrote(judged[2])
#endif
}
inline each_ended() {
    mine = GONE; late.expects = GONE; call[0].request.expects = GONE; call[1].request.expects = GONE; judged[1] = GONE
#if ENDERS == 2
    ; call[2].request.expects = GONE; judged[2] = GONE
#endif
}

/* --- belief ----------------------------------------------------------------------------------------------------- */

bit  works;                            /* `lifecycle.State.HELD` of the member */
byte registered_left, record_left;     /* `LeaseState.registration_deadline`, `LeaseState.record_deadline`, minus now */
byte renewed_left;                     /* of a registration just renewed, until the record was read too */
byte first_left;                       /* what a renewal sent with the member's first read would be worth */
byte first_seen;                       /* GONE: not yet; EXACT: nothing was written since; SAME: something was */

#ifdef BELIEVES_THE_REGISTRATION_ALONE
#define BELIEVES (works && registered_left > 0)
#elif defined(BELIEVES_THE_RECORD_ALONE)
#define BELIEVES (works && record_left > 0)
#else
#define BELIEVES (works && registered_left > 0 && record_left > 0) /* until the earlier of the two */
#endif

/* THE PROMISE. A belief begins or is lengthened, or the record goes, in few places only: it is looked at in each. */
#define promise() assert(stands || !(BELIEVES || sibling > 0))

#ifdef DEAD_REMOVED_BY_INCARNATION_ALONE
#define MAY_REMOVE_DEAD(q) (q.expects != GONE)
#else
#define MAY_REMOVE_DEAD(q) (q.expects == EXACT)
#endif

inline apply(q) {
  d_step {
    applied = true;
    if
    :: q.kind == REGISTER && !is_registered -> each_ended(); is_registered = true; registered_age = 0
    :: q.kind == EXTEND_MINE && is_registered && q.expects != GONE -> each_wrote(); registered_age = 0
    :: q.kind == WITHDRAW && is_registered && q.expects != GONE ->
        each_ended(); is_registered = false; registered_age = 0
    :: q.kind == REMOVE_DEAD && is_registered && MAY_REMOVE_DEAD(q) ->
        each_ended(); is_registered = false; registered_age = 0
    :: q.kind == READ && stands
    :: q.kind == EXTEND && stands -> age = 0; wrote(first_seen)
    :: q.kind == CLOSE && stands  -> age = 0; wrote(first_seen); closing = true
    :: q.kind == REMOVE && stands -> stands = false; age = 0; closing = false; promise()
    :: else -> applied = false
    fi
  }
}

inline send(who, kind_, expects_) {
    call[who].state = ASKED;
    call[who].left = (who == MEMBER && kind_ != WITHDRAW -> BELIEF : 0);
    call[who].request.kind = kind_; call[who].request.expects = expects_
}
inline hang_up(who) {
    call[who].state = NONE; call[who].left = 0; call[who].closing = 0; clear(call[who].request)
}
#define IS_DONE(who)    (call[who].state == DONE)
#define IS_REFUSED(who) (call[who].state == REFUSED)

/* `OutcomeUnknown`: the request was lost, or its answer was, or it is late. */
inline unknown(who) {
    if
    :: call[who].state == ASKED && late.kind == 0 && call[who].request.kind != READ -> copy(call[who].request, late)
    :: true
    fi;
    hang_up(who)
}

inline answer(p) {
    clear(call[p].request);
    if
    :: applied -> call[p].state = DONE; call[p].closing = closing; call[p].request.expects = SAME
    :: else    -> call[p].state = REFUSED; call[p].left = 0
    fi;
    applied = 0
}
inline deliver(p) {
    apply(call[p].request);
    if
    :: late.kind == 0 -> copy(call[p].request, late) /* it will arrive once more */
    :: true
    fi;
    answer(p)
}
inline deliver_read() {
    apply(call[MEMBER].request);
    if
    :: first_seen == GONE -> first_left = call[MEMBER].left; first_seen = EXACT
    :: else
    fi;
#ifndef READ_WITHOUT_AGE
    /* `ProtocolContext.deadline_by_look` */
    call[MEMBER].left = (call[MEMBER].left > age -> call[MEMBER].left - age : 0);
#endif
    if                                 /* what was written in between came after the first read was sent */
    :: first_seen == SAME && first_left > call[MEMBER].left -> call[MEMBER].left = first_left
    :: else
    fi;
    answer(MEMBER)
}
inline deliver_late() {
    apply(late);
    if
    :: clear(late)
    :: true                            /* and once more */
    fi;
    applied = 0
}

active proctype network() {
    do
    :: atomic { call[MEMBER].state == ASKED && call[MEMBER].request.kind == READ -> deliver_read() }
    :: atomic { call[MEMBER].state == ASKED && call[MEMBER].request.kind != READ -> deliver(MEMBER) }
    :: atomic { call[1].state == ASKED -> deliver(1) }
#if ENDERS == 2
    :: atomic { call[2].state == ASKED -> deliver(2) }
#endif
    :: atomic { late.kind != 0 -> deliver_late() }
    :: atomic { late.kind != 0 -> clear(late) } /* lost after all */
    od
}

inline pass(ticks) { ticks = (ticks > 0 -> ticks - 1 : 0) }

active proctype time() {
    do
    :: d_step {
        age = (stands && age < LIFE -> age + 1 : age);
        registered_age = (is_registered && registered_age < LIFE -> registered_age + 1 : registered_age);
        pass(sibling); pass(registered_left); pass(record_left); pass(renewed_left); pass(first_left);
        pass(call[MEMBER].left)
    }
    od
}

/* --- the member ------------------------------------------------------------------------------------------------- */

inline lengthen(which, ticks) { which = (which > ticks -> which : ticks); promise() }
inline stop() { works = false; registered_left = 0; record_left = 0; renewed_left = 0; first_left = 0 }

#ifdef READ_BEFORE_REGISTERING
#define BEGIN      join
#define REGISTERED begin
#define JOINED     register
#else
#define BEGIN      register
#define REGISTERED join
#define JOINED     begin
#endif
#ifdef ATTACH_WITHOUT_LOOKING
#define MAY_JOIN   IS_DONE(MEMBER)
#else
#define MAY_JOIN   (IS_DONE(MEMBER) && !call[MEMBER].closing)
#endif

#ifdef LATE_SUCCESS_REVIVES
#define MAY_LENGTHEN works
#else
#define MAY_LENGTHEN BELIEVES
#endif

active proctype member() {
    goto BEGIN;

register:                              /* `members._register` */
    atomic { send(MEMBER, REGISTER, GONE) };
    if
    :: atomic { IS_DONE(MEMBER) -> goto registered }
    :: atomic { IS_REFUSED(MEMBER) -> hang_up(MEMBER) }
    :: atomic { unknown(MEMBER) }
    fi;
    if                                 /* an earlier attempt may have landed: its age is unknown, so extend it */
    :: atomic { !is_registered -> goto register }
    :: atomic { is_registered -> mine = SAME }
    fi;
    atomic { send(MEMBER, EXTEND_MINE, mine); mine = GONE };
    if
    :: atomic { IS_DONE(MEMBER) -> goto registered }
    :: atomic { IS_REFUSED(MEMBER) -> hang_up(MEMBER); goto register }
    :: atomic { unknown(MEMBER); goto out }
    fi;
registered:
    atomic {
        mine = call[MEMBER].request.expects; lengthen(registered_left, call[MEMBER].left);
        hang_up(MEMBER); goto REGISTERED
    };

join:                                  /* `members._join` [4]: after the answer that proves the registration */
    atomic { send(MEMBER, READ, GONE) };
    if
    :: atomic { MAY_JOIN -> goto joined }
    :: atomic { MAY_JOIN -> hang_up(MEMBER) } /* little is left, or the read cannot tell: extend the lease */
    :: atomic { !MAY_JOIN && (IS_DONE(MEMBER) || IS_REFUSED(MEMBER)) -> hang_up(MEMBER); goto withdraw }
    :: atomic { unknown(MEMBER); goto out }
    fi;
    atomic { send(MEMBER, EXTEND, GONE) };
    if
    :: atomic { MAY_JOIN -> goto joined }
    :: atomic { !MAY_JOIN && (IS_DONE(MEMBER) || IS_REFUSED(MEMBER)) -> hang_up(MEMBER); goto withdraw }
    :: atomic { unknown(MEMBER); goto join } /* read again: another member may have renewed it for all */
    :: atomic { unknown(MEMBER); goto out }
    fi;
joined:
    atomic {
        lengthen(record_left, call[MEMBER].left); hang_up(MEMBER);
        first_left = 0; first_seen = EXACT; /* matters no more */
        goto JOINED
    };

begin:
    atomic { works = true; promise() };

work:                                  /* `members.renew_member`: the registration first */
    if
    :: atomic { works -> send(MEMBER, EXTEND_MINE, mine) }
    :: atomic { stop(); goto withdraw } /* the body is over, or the loss is told: so is the belief */
    fi;
    if
    :: atomic { IS_DONE(MEMBER) -> renewed_left = call[MEMBER].left; hang_up(MEMBER) }
    :: atomic { IS_REFUSED(MEMBER) -> stop(); hang_up(MEMBER); goto withdraw }
    :: atomic { unknown(MEMBER); goto work }
    fi;
    atomic { send(MEMBER, READ, GONE) };
    if
    :: atomic { IS_DONE(MEMBER) -> goto renewed }
    :: atomic { IS_DONE(MEMBER) && !call[MEMBER].closing -> hang_up(MEMBER) }
    :: atomic { IS_REFUSED(MEMBER) -> stop(); hang_up(MEMBER); goto withdraw }
    :: atomic { unknown(MEMBER); renewed_left = 0; goto work }
    fi;
    atomic { send(MEMBER, EXTEND, GONE) };
    if
    :: atomic { IS_DONE(MEMBER) -> goto renewed }
    :: atomic { IS_REFUSED(MEMBER) -> stop(); hang_up(MEMBER); goto withdraw }
    :: atomic { unknown(MEMBER); renewed_left = 0; goto work }
    fi;
renewed:                               /* `LeaseState.registered`, `LeaseState.renewed` */
    atomic {
        if
#ifndef LATE_SUCCESS_REVIVES
        :: !BELIEVES -> stop()         /* once past, for good */
#endif
        :: MAY_LENGTHEN -> lengthen(registered_left, renewed_left);
            if
            :: !call[MEMBER].closing -> lengthen(record_left, call[MEMBER].left)
            :: call[MEMBER].closing    /* no more renewals: the deadline stands */
            fi
        fi;
        renewed_left = 0; hang_up(MEMBER); goto work
    };

withdraw:                              /* `Remove` of the registration: the member has stopped */
#ifdef MEMBER_REMOVES_AT_RELEASE
    atomic { send(MEMBER, REMOVE, GONE) };
#else
    atomic { send(MEMBER, WITHDRAW, mine) };
#endif
    if
    :: atomic { IS_DONE(MEMBER) || IS_REFUSED(MEMBER) -> hang_up(MEMBER) }
    :: atomic { unknown(MEMBER); goto withdraw }
    :: atomic { unknown(MEMBER) }
    fi;
out:
    atomic { stop(); mine = GONE }
}

/* A sibling whose every request comes through at once: it is there so that somebody else is at work too. */
active proctype another() {
    do
    :: atomic { sibling > 0 && stands && !closing -> age = 0; sibling = BELIEF }
    :: atomic { sibling > 0 -> sibling = 0; break }
    od
}

/* --- who ends the lease ----------------------------------------------------------------------------------------- */

/* `release.release`. REMOVE stands for `release.end` too, and for the Replace of `acquire._reclaim` [12]: from each of
   them on the key is the next one's. */
proctype ender(byte me) {

close:                                 /* `release._close` */
    atomic { send(me, CLOSE, GONE) };
    if
    :: atomic { IS_DONE(me) -> hang_up(me) }
    :: atomic { IS_REFUSED(me) -> hang_up(me); goto left }
    :: atomic { unknown(me); goto close }
    :: atomic { unknown(me); goto left }
#ifdef LISTED_WITHOUT_AN_ANSWER_THAT_SHOWS_CLOSING
    :: atomic { unknown(me) }
#endif
    fi;
#ifdef REMOVED_WITHOUT_DRAIN
    goto remove;
#endif

drain:                                 /* `members.drain` [4] */
    if
    :: atomic { !is_registered && sibling == 0 -> goto remove }
    :: atomic { is_registered && registered_age >= LIFE -> judged[me] = EXACT }
    :: atomic { is_registered || sibling > 0 -> goto left } /* the bound is reached, somebody is live: it expires */
#ifdef REMOVED_AT_THE_BOUND
    :: atomic { is_registered || sibling > 0 -> goto remove }
#endif
    fi;
    atomic { send(me, REMOVE_DEAD, judged[me]); judged[me] = GONE };
    if
    :: atomic { IS_DONE(me) || IS_REFUSED(me) -> hang_up(me) }
    :: atomic { unknown(me) }
    fi;
    goto drain;                        /* read the list again: a member that renewed in between is alive */

remove:                                /* `release.remove` */
    atomic { send(me, REMOVE, GONE) };
    if
    :: atomic { IS_DONE(me) || IS_REFUSED(me) -> hang_up(me) }
    :: atomic { unknown(me); goto remove }
    :: atomic { unknown(me) }
    fi;
left:
    skip
}

/* The lease is dead, and the next one takes over. */
active proctype contender() {
    atomic { stands && age >= LIFE -> stands = false; age = 0; closing = false; promise() }
}

init {
    atomic {
        run ender(1);
#if ENDERS == 2
        run ender(2)
#endif
    }
}
