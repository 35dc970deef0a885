/* A semaphore: never do more holders work than its limit allows, also while the limit changes.

   The limit is in the *gate*, a record under the key that no lease depends on. A permit is an exclusive lease of a slot
   (proved in contenders.pml); what is new is between slot and gate. In it: a taker A, whose every request may be lost,
   or arrive late, or several times; other takers (one, or with -DOTHERS=2 two), whose requests come through at once; an
   operator, as unreliable as A, who changes the limit. Every answer may be lost, and every taker may have any outdated
   idea of the limit. Everybody may stand still anywhere for any time. Nothing is bounded but this: two slots, limits of
   1 and 2 (with -DLEAST=0 also 0), and at any instant at most one message is under way for which nobody waits any more.
   Not in it: two operators, a gate that is deleted and created again, drift, and the turn, which protects nothing.

   [n] is a rule in docs/protocol.md, [Pn] one of permits, whose tests carry its number (pytest -k p02); a name in
   backquotes is defined in core/src/lockstead/protocol/. Capitals after #ifdef are faults. */

/* Ticks: a deadline counts from the send, a record's life from the write. Margins of drift are in contenders.pml. */
#define LIFE    1                      /* `expiry.record_lifetime` */
#ifdef NO_MARGIN
#define BELIEF  (LIFE + 1)
#else
#define BELIEF  LIFE                   /* `expiry.holder_deadline` */
#endif
#ifndef LEAST
#define LEAST   1                      /* the lowest limit */
#endif
#ifndef OTHERS
#define OTHERS  1
#endif

/* --- the store -------------------------------------------------------------------------------------------------- */

byte limit = 2;                        /* in the gate */

#define FREE    0
#define MINE    1                      /* A's present wish; beyond it the other takers */
#define EARLIER 4                      /* a wish of A that is over */
byte slot[2];
byte age[2];

#define GONE  0                        /* another incarnation, or none */
#define SAME  1                        /* this incarnation; of the gate: written to since */
#define EXACT 2                        /* of the gate: this revision */
byte known[2];                         /* what A knows of a slot */

mtype:command = { TAKE, EXTEND, REMOVE, SET };
typedef Request { mtype:command kind; byte slot; byte expects }; /* of SET: the limit; of TAKE: who */
mtype:call = { NONE, ASKED, DONE, REFUSED };
typedef Call { mtype:call state = NONE; Request request; byte left };
#define A        0
#define OPERATOR 1
Call    call[2];
Request late;
bit     applied;

/* --- who holds, and how many may -------------------------------------------------------------------------------- */

bit  held;
byte left;                             /* ticks until A's deadline */
byte mine;                             /* A's slot */
byte other_left[2];
byte other_slot[2];

byte promised = 2;                     /* what the operator may report: raised when a growth is *sent*, lowered when a
                                          shrinkage is *known* to be in effect [P4] */

#define BELIEVES (held && left > 0)
#define WITH_A(b) (BELIEVES && other_left[b] > 0 && other_slot[b] == mine)
#define BOTH(a, b) (other_left[a] > 0 && other_left[b] > 0 && other_slot[a] == other_slot[b])

/* THE PROMISES. */
#define promise() \
    assert((BELIEVES -> 1 : 0) + (other_left[0] > 0 -> 1 : 0) + (other_left[1] > 0 -> 1 : 0) <= promised); \
    assert(!WITH_A(0) && !WITH_A(1) && !BOTH(0, 1))

inline clear(q)       { q.kind = 0; q.slot = 0; q.expects = 0 }
inline copy(from, to) { to.kind = from.kind; to.slot = from.slot; to.expects = from.expects }
inline next(i, who)   {
    slot[i] = who; known[i] = (who == MINE -> SAME : GONE); age[i] = 0;
    call[A].request.expects =
        ((call[A].request.kind == EXTEND || call[A].request.kind == REMOVE) && call[A].request.slot == i
         -> GONE : call[A].request.expects);
    late.expects = ((late.kind == EXTEND || late.kind == REMOVE) && late.slot == i -> GONE : late.expects)
}
inline set_limit(to) {
    limit = to;
    call[OPERATOR].request.expects = (call[OPERATOR].request.kind == SET -> SAME : call[OPERATOR].request.expects);
    late.expects = (late.kind == SET -> SAME : late.expects)
}
#define IS_OPEN(i) (slot[i] == FREE || age[i] >= LIFE) /* `context.is_over` */
#ifdef LIMIT_SET_WITHOUT_THE_REVISION
#define MAY_SET(q) true
#else
#define MAY_SET(q) (q.expects == EXACT) /* [P3] */
#endif

inline apply(q) {
  d_step {
    applied = 1;
    if
    :: q.kind == TAKE && IS_OPEN(q.slot) -> next(q.slot, q.expects) /* Create; Replace of what is over */
    :: q.kind == EXTEND && slot[q.slot] != FREE && q.expects == SAME -> age[q.slot] = 0
    :: q.kind == REMOVE && slot[q.slot] != FREE && q.expects == SAME -> next(q.slot, FREE)
    :: q.kind == SET && MAY_SET(q) -> set_limit(q.slot)
    :: else -> applied = 0
    fi
  }
}

/* --- messages --------------------------------------------------------------------------------------------------- */

inline send(who, kind_, slot_, expects_) {
    call[who].state = ASKED;
    call[who].request.kind = kind_; call[who].request.slot = slot_; call[who].request.expects = expects_;
    call[who].left = (kind_ == TAKE || kind_ == EXTEND -> BELIEF : 0)
}
inline hang_up(who) { call[who].state = NONE; call[who].left = 0; clear(call[who].request) }
#define IS_DONE(who)    (call[who].state == DONE)
#define IS_REFUSED(who) (call[who].state == REFUSED)

/* `OutcomeUnknown`: the request was lost, or its answer was, or it is late. */
inline unknown(who) {
    if
    :: call[who].state == ASKED && late.kind == 0 -> copy(call[who].request, late)
    :: true
    fi;
    hang_up(who)
}
inline deliver(p) {
    if
    :: late.kind == 0 -> copy(call[p].request, late) /* it will arrive once more */
    :: true
    fi;
    apply(call[p].request);
    if
    :: applied -> call[p].state = DONE
    :: else    -> call[p].state = REFUSED; call[p].left = 0
    fi;
    clear(call[p].request); applied = 0
}

active proctype network() {
    do
    :: atomic { call[A].state == ASKED -> deliver(A) }
    :: atomic { call[OPERATOR].state == ASKED -> deliver(OPERATOR) }
    :: atomic { late.kind != 0 -> apply(late); applied = 0; if :: clear(late) :: true fi }
    :: atomic { late.kind != 0 -> clear(late) } /* lost after all */
    od
}

inline pass(ticks) { ticks = (ticks > 0 -> ticks - 1 : 0) }

active proctype time() {
    do
    :: d_step {
        age[0] = (slot[0] != FREE && age[0] < LIFE -> age[0] + 1 : age[0]);
        age[1] = (slot[1] != FREE && age[1] < LIFE -> age[1] + 1 : age[1]);
        pass(left); pass(other_left[0]); pass(other_left[1]); pass(call[A].left)
    }
    od
}

/* --- A ---------------------------------------------------------------------------------------------------------- */

active proctype taker() {
    do
    :: atomic { if :: mine = 0 :: mine = 1 fi }; /* by an outdated idea of the limit, or a guess */
#ifdef GATE_READ_BEFORE_THE_SLOT
    if
    :: atomic { mine < limit }
    :: atomic { mine >= limit -> goto over }
    fi;
#endif

    atomic { send(A, TAKE, mine, MINE) }; /* `acquire.attempt_exclusive` [P1] */
    if
    :: atomic { IS_DONE(A) -> goto granted }
    :: atomic { IS_REFUSED(A) -> hang_up(A); goto over }
    :: atomic { unknown(A) }
    fi;
    if                                 /* this slot is looked at before any other [P1] */
    :: atomic { slot[mine] == MINE -> send(A, EXTEND, mine, SAME) } /* `acquire._adopt` [2] */
    :: atomic { slot[mine] != MINE -> goto over }
    :: goto over
    fi;
    if
    :: atomic { IS_DONE(A) }
    :: atomic { IS_REFUSED(A) -> hang_up(A); goto over }
    :: atomic { unknown(A); goto over }
    fi;
#ifdef ADOPTED_WITHOUT_READING_THE_GATE
    goto begin;
#endif

granted:                               /* [P2]: the gate is read after the answer that proves the slot */
#if !defined(GATE_NOT_READ) && !defined(GATE_READ_BEFORE_THE_SLOT)
    if
    :: atomic { mine < limit }
    :: atomic { mine >= limit -> hang_up(A); goto give_back }
    :: atomic { hang_up(A); goto give_back } /* the read has no answer */
    fi;
#endif
begin:
    atomic { held = 1; left = call[A].left; hang_up(A); promise() };
    do                                 /* `renew.renew`: the gate is not read again */
    :: atomic { held && call[A].state == NONE -> send(A, EXTEND, mine, known[mine]) }
    :: atomic { IS_DONE(A) ->
        if
#ifdef LATE_SUCCESS_REVIVES
        :: true -> left = call[A].left
#else
        :: BELIEVES -> left = call[A].left
        :: !BELIEVES -> held = 0; left = 0 /* once past, for good */
#endif
        fi;
        hang_up(A); promise() }
    :: atomic { IS_REFUSED(A) -> held = 0; left = 0; hang_up(A) }
    :: atomic { call[A].state != NONE -> unknown(A) }
    :: atomic { held = 0; left = 0; break }
    od;
    if
    :: atomic { IS_DONE(A) || IS_REFUSED(A) -> hang_up(A) }
    :: atomic { call[A].state == ASKED -> unknown(A) }
    :: atomic { call[A].state == NONE }
    fi;
give_back:                             /* `release.remove` */
    atomic { send(A, REMOVE, mine, known[mine]) };
    if
    :: atomic { IS_DONE(A) || IS_REFUSED(A) -> hang_up(A) }
    :: atomic { unknown(A) }
    fi;
over:                                  /* the next wish has another holder */
    atomic {
        held = 0; left = 0; mine = 0; known[0] = GONE; known[1] = GONE;
        slot[0] = (slot[0] == MINE -> EARLIER : slot[0]); slot[1] = (slot[1] == MINE -> EARLIER : slot[1]);
        late.expects = (late.kind == TAKE -> EARLIER : late.expects)
    }
    od
}

/* --- the other takers ------------------------------------------------------------------------------------------- */

#define IS_HIS (slot[other_slot[me]] == 2 + me)
inline take(i) { next(i, 2 + me); other_slot[me] = i }

proctype reliable(byte me) {
    do
    :: atomic {
        if
        :: IS_OPEN(0) -> take(0)
        :: IS_OPEN(1) -> take(1)
        fi
    };
    if                                 /* [P2] */
    :: atomic { other_slot[me] < limit && IS_HIS -> other_left[me] = BELIEF - age[other_slot[me]]; promise() }
    :: atomic { other_slot[me] >= limit || !IS_HIS }
    fi;
    do
    :: atomic { other_left[me] > 0 && IS_HIS -> age[other_slot[me]] = 0; other_left[me] = BELIEF; promise() }
    :: atomic { other_left[me] = 0; break }
    od;
    atomic {
        if
        :: IS_HIS -> next(other_slot[me], FREE)
        :: else
        fi;
        other_slot[me] = 0
    }
    od
}

/* --- the operator ----------------------------------------------------------------------------------------------- */

#define IS_ABOVE_EMPTY(n) ((n > 1 || IS_OPEN(1)) && (n > 0 || IS_OPEN(0)))

active proctype operator() {
    byte n;
    do
    :: atomic {                        /* the gate is read, then set */
        if
#if LEAST == 0
        :: n = 0
#endif
        :: n = 1
        :: n = 2
        fi;
        promised = (n > promised -> n : promised);
        send(OPERATOR, SET, n, EXACT)
    };
#ifdef LISTED_BEFORE_THE_LIMIT_IS_SET
    if
    :: atomic { IS_ABOVE_EMPTY(n) }
    :: atomic { !IS_ABOVE_EMPTY(n) -> unknown(OPERATOR); goto over }
    fi;
#endif
    if
    :: atomic { IS_DONE(OPERATOR) -> hang_up(OPERATOR) }
    :: atomic { IS_REFUSED(OPERATOR) -> hang_up(OPERATOR); goto over }
    :: atomic { unknown(OPERATOR); goto over }
#ifdef LISTED_WITHOUT_AN_ANSWER
    :: atomic { unknown(OPERATOR) }
#endif
    fi;
#if defined(SHRUNK_WITHOUT_A_LIST) || defined(LISTED_BEFORE_THE_LIMIT_IS_SET)
    atomic { promised = n; promise() };
#else
    if                                 /* [P4]: the slots above are listed after the answer */
    :: atomic { IS_ABOVE_EMPTY(n) -> promised = n; promise() }
    :: goto over                       /* somebody is live there, and that is reported */
    fi;
#endif
over:
    atomic { n = 0 }
    od
}

init {
    atomic {
        run reliable(0);
#if OTHERS == 2
        run reliable(1)
#endif
    }
}
