/* Two contenders for one lock: never do both believe at once that they hold it.

   In it: acquire, adopt, take over, renew, lose, release, end, sweep, and an operator who revokes. Every request may
   be lost, or arrive late, or several times; every answer may be lost. Everybody may stand still anywhere for any
   time, which is also what a crash looks like to the others. Nothing is bounded but this: at any instant at most one
   message of the two is under way for which nobody waits any more (and one of the operator).

   [n] is a rule in docs/protocol.md; a name in backquotes is defined in core/src/lockstead/protocol/. Capitals after
   #ifdef are faults: the model must fail with any of them. */

/* Time is whole ticks of the clock by which contenders judge. A deadline is kept as the ticks left until it. */
#define TTL      2
#define DRIFT    1                     /* the margin on either side */
#define GAIN     (2 * DRIFT)           /* by this the judge's clock may outrun the holder's within a ttl */

#ifdef NO_MARGIN_OF_THE_HOLDER
#define BELIEF   (TTL + GAIN)
#else
#define BELIEF   (TTL - DRIFT + GAIN)  /* `expiry.holder_deadline`, if the clocks differ as much as they may */
#endif
#ifdef NO_MARGIN_OF_THE_CONTENDER
#define LIFE     TTL
#else
#define LIFE     (TTL + DRIFT)         /* `expiry.record_lifetime` */
#endif

/* --- the store: one record; a command takes effect in one step, which is what a store promises ------------------ */

#define NOBODY   0                     /* there is no record */
#define SOMEBODY 3                     /* an earlier wish of either contender; 1 and 2 are their present ones */
byte holder;
byte age;                              /* ticks since the last change */
bit  revoked;
bit  has_ended;                        /* free though it stands: it tells the next holder of a loss */
bit  applied;                          /* whether the last command was */

mtype:command = { CREATE, REPLACE, EXTEND, REVOKE, REMOVE, END };

/* No incarnation comes back, nor does a revision within it. So what somebody has seen, and what a request expects, is
   kept as what it is to the record that stands now. This loses nothing, and there are no numbers to bound. */
#define GONE  0                        /* another incarnation, or none */
#define SAME  1                        /* this incarnation, written to since */
#define EXACT 2                        /* this incarnation and this revision */

typedef Request { mtype:command kind; byte who; byte expects };

#ifdef TAKEOVER_BY_INCARNATION_ALONE   /* kills a lock that was renewed just in time */
#define MAY_REPLACE(q)   (q.expects != GONE)
#elif defined(TAKEOVER_BY_REVISION_ALONE) /* it begins again with each incarnation, so two may be equal */
#define MAY_REPLACE(q)   (q.expects != SAME)
#else
#define MAY_REPLACE(q)   (q.expects == EXACT)
#endif
#ifdef RENEWAL_WITHOUT_INCARNATION
#define MAY_EXTEND(q)    true
#else
#define MAY_EXTEND(q)    (q.expects != GONE)
#endif
#ifdef REMOVAL_WITHOUT_CONDITION
#define MAY_REMOVE(q)    true
#else
#define MAY_REMOVE(q)    (q.expects != GONE)
#endif

/* --- messages: what a contender waits for; and one that is under way though nobody waits for it ----------------- */

mtype:call = { NONE, ASKED, DONE, REFUSED };

typedef Call {
    mtype:call state = NONE;
    Request request;                   /* once it is done, its 'expects' is what the answer showed */
    byte left;                         /* ticks of belief that the answer is worth: counted from the send */
    bit is_ending                      /* whether the answer shows a record that is revoked, or has ended */
};
Call    call[2];
Request late;
Request order;                         /* the operator's */
byte    seen[2];                       /* by a contender's last look, or its lease */

inline clear(q)       { q.kind = 0; q.who = 0; q.expects = 0 }
inline copy(from, to) { to.kind = from.kind; to.who = from.who; to.expects = from.expects }


inline wrote(what)   { what = (what == EXACT -> SAME : what) }
inline went(what)    { what = GONE }

inline write() {
    wrote(call[0].request.expects); wrote(call[1].request.expects); wrote(late.expects); wrote(order.expects);
    wrote(seen[0]); wrote(seen[1]);
    age = 0
}
inline next(who_) {
    went(call[0].request.expects); went(call[1].request.expects); went(late.expects); went(order.expects);
    went(seen[0]); went(seen[1]);
    holder = who_; age = 0; revoked = false; has_ended = false
}

inline apply(q) {
  d_step {
    applied = true;
    if
    :: q.kind == CREATE && holder == NOBODY                    -> next(q.who)
    :: q.kind == REPLACE && holder != NOBODY && MAY_REPLACE(q) -> next(q.who)
    :: q.kind == EXTEND && holder != NOBODY && MAY_EXTEND(q)   -> write()
    :: q.kind == REVOKE && holder != NOBODY && MAY_EXTEND(q)   -> write(); revoked = !has_ended
    :: q.kind == END && holder != NOBODY && MAY_REMOVE(q)      -> write(); has_ended = true; revoked = false
    :: q.kind == REMOVE && holder != NOBODY && MAY_REMOVE(q)   -> next(NOBODY)
    :: else -> applied = false
    fi
  }
}

inline send(kind_, who_, expects_) {
    call[me].state = ASKED;
    call[me].left = (kind_ == REMOVE || kind_ == END -> 0 : BELIEF);
    call[me].request.kind = kind_; call[me].request.who = who_; call[me].request.expects = expects_
}
inline hang_up() {
    call[me].state = NONE; call[me].left = 0; call[me].is_ending = 0; clear(call[me].request)
}
#define IS_ASKING (call[me].state != NONE)

/* `OutcomeUnknown`: the request was lost, or its answer was, or it is late. */
inline unknown() {
    if
    :: call[me].state == ASKED && late.kind == 0 -> copy(call[me].request, late)
    :: true
    fi;
    hang_up()
}

inline deliver(p) {
    apply(call[p].request);
    if
    :: late.kind == 0 -> copy(call[p].request, late) /* it will arrive once more */
    :: true
    fi;
    clear(call[p].request);
    if
    :: applied -> call[p].state = DONE; call[p].is_ending = (revoked || has_ended); call[p].request.expects = EXACT
    :: else    -> call[p].state = REFUSED; call[p].left = 0
    fi;
    applied = 0
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
    :: atomic { call[0].state == ASKED -> deliver(0) }
    :: atomic { call[1].state == ASKED -> deliver(1) }
    :: atomic { late.kind != 0 -> deliver_late() }
    :: atomic { late.kind != 0 -> clear(late) } /* lost after all */
    :: atomic { order.kind != 0 -> apply(order); clear(order); applied = 0 }
    od
}

/* --- belief and time -------------------------------------------------------------------------------------------- */

mtype:state = { IDLE, HELD, LOST };    /* `lifecycle.State`; IDLE stands for LEAVING and LEFT too */
mtype:state state[2] = IDLE;
byte left[2];

#define BELIEVES(p) (state[p] == HELD && left[p] > 0) /* `LeaseState.believes` */

/* THE PROMISE. A belief begins or is lengthened here only, so two at once would be seen here. */
inline believe(ticks) {
    left[me] = ticks;
    assert(!(BELIEVES(0) && BELIEVES(1)))
}

inline pass(ticks) {
    ticks = (ticks > 0 -> ticks - 1 : 0)
}

active proctype time() {
    do
    :: d_step {
        age = (holder != NOBODY && !has_ended && age < LIFE -> age + 1 : age);
        pass(left[0]); pass(left[1]);
        pass(call[0].left); pass(call[1].left)
    }
    od
}

/* --- the protocol ----------------------------------------------------------------------------------------------- */

#define ME (1 + me)                    /* the holder: fresh for every wish, the same for all its attempts */

#ifdef DEADLINE_FROM_THE_ANSWER
#define WORTH BELIEF
#else
#define WORTH call[me].left
#endif

inline lose()  { state[me] = LOST; left[me] = 0 }
inline leave() { state[me] = IDLE; left[me] = 0 }

proctype contender(byte me) {
    do
    :: true;                           /* a wish */

create:                                /* `acquire.create` */
        atomic { send(CREATE, ME, GONE) };
        if
        :: atomic { call[me].state == DONE -> goto granted }
        :: atomic { call[me].state == REFUSED -> hang_up() }
        :: atomic { unknown() }
        fi;

look:                                  /* `acquire.attempt_exclusive`: waiting reads, and never writes */
        if
        :: atomic { holder == NOBODY -> goto create }
        :: atomic { holder == ME && (revoked || has_ended) -> seen[me] = SAME; goto remove }
        :: atomic { holder == ME && !revoked && !has_ended -> seen[me] = SAME; goto adopt }
        :: atomic { holder != NOBODY && holder != ME && (age >= LIFE || has_ended) -> /* `context.is_over` */
                seen[me] = EXACT; goto take_over }
        :: atomic { holder != NOBODY && holder != ME -> goto over } /* out of time: given up */
        fi;

adopt:                                 /* `acquire._adopt` [2]: the age of what was found is unknown, so extend it */
        atomic { send(EXTEND, 0, seen[me]); seen[me] = GONE };
        if
        :: atomic { call[me].state == DONE && !call[me].is_ending -> goto granted }
        :: atomic { call[me].state == REFUSED || call[me].is_ending -> hang_up(); goto look }
        :: atomic { unknown(); goto look }
        fi;

take_over:                             /* `acquire.take_over`: exactly the state that was judged */
        atomic { send(REPLACE, ME, seen[me]); seen[me] = GONE };
        if
        :: atomic { call[me].state == DONE -> goto granted }
        :: atomic { call[me].state == REFUSED -> hang_up(); goto look }
        :: atomic { unknown(); goto look }
        fi;

granted:
        atomic {
            seen[me] = (call[me].request.expects != GONE -> SAME : GONE);
            state[me] = HELD; believe(WORTH); hang_up()
        };

        do                             /* the keeper: `renew.renew`, `lifecycle.LeaseState` */
        :: atomic { state[me] == HELD && !IS_ASKING -> send(EXTEND, 0, seen[me]) }
        :: atomic { call[me].state == DONE ->
            if
            :: call[me].is_ending -> lose()
#ifdef LATE_SUCCESS_REVIVES
            :: else -> assert(BELIEVES(me)); /* what is lost stays lost */
                state[me] = HELD; believe(WORTH)
#else
            :: !call[me].is_ending && BELIEVES(me) -> believe(WORTH)
            :: !call[me].is_ending && !BELIEVES(me) -> lose() /* once past, for good */
#endif
            fi;
            hang_up()
        }
        :: atomic { call[me].state == REFUSED -> lose(); hang_up() }
        :: atomic { IS_ASKING -> unknown() }
        :: atomic { state[me] == HELD -> lose() } /* told: unreachable, or little is left */
        :: atomic { leave(); break }   /* the body is over: so is the belief */
        od;

        if                             /* a renewal that is in flight is waited for, but not for ever */
        :: atomic { call[me].state == DONE || call[me].state == REFUSED -> hang_up() }
        :: atomic { call[me].state == ASKED -> unknown() }
        :: atomic { !IS_ASKING }
        fi;

remove:                                /* `release.remove`, after a loss `release.end`: this incarnation alone */
        if
        :: atomic { send(REMOVE, 0, seen[me]) }
        :: atomic { send(END, 0, seen[me]) }
        fi;
        if
        :: atomic { call[me].state == DONE || call[me].state == REFUSED -> hang_up() }
        :: atomic { unknown(); goto remove }
        :: atomic { unknown() }
        fi;

over:                                  /* `release.sweep`: what an unknown outcome may have left */
        if
        :: atomic { holder == ME -> seen[me] = SAME; goto remove }
        :: atomic { true }
        fi;
        atomic {                       /* the next wish has another holder */
            seen[me] = GONE;
            if :: holder == ME -> holder = SOMEBODY :: else fi;
            if :: late.who == ME -> late.who = SOMEBODY :: else fi
        }
    od
}

active proctype operator() {           /* `release.break_lease`: what it saw may be gone by then */
    do
    :: atomic { holder != NOBODY && order.kind == 0 -> order.kind = REVOKE; order.expects = SAME }
    od
}

init { atomic { run contender(0); run contender(1) } }
