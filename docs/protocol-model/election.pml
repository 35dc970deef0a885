/* Leadership: an exclusive lease that advertises a value, and the callbacks of a process that campaigns for it.

   In it: a candidate A, which campaigns, leads, advertises, resigns, loses, dies and comes back as the same owner; a
   candidate B; and with -DOBSERVED an observer in place of A's callbacks. Every request of A may be lost, or arrive
   late, or several times, and every answer may be lost; B's requests come through at once. Everybody may stand still
   anywhere for any time. Nothing is bounded but this: at any instant at most one message is under way for which nobody
   waits any more, and two answers to the observer. That a lease excludes others is proved in contenders.pml, and that
   tokens grow with the grants in tokens.pml; what is not explained here is explained there.

   -DALONE and -DPAIR are worlds without faults, for the claims of progress: A alone, from every state that others can
   have left, is elected again and again; and so is B beside an A that always campaigns and ends its terms by max_term.

   [n] is a rule in docs/protocol.md, [En] one of elections, whose tests carry its number (pytest -k e02); a name in
   backquotes is defined in core/src/lockstead/protocol/. Capitals after #ifdef are faults: the model must fail with any
   of them, but for the one that says it is harmless. */

/* Ticks: a deadline counts from the send, a record's life from the write. Margins of drift are in contenders.pml. */
#ifdef OBSERVED
#define TTL      2
#else
#define TTL      3
#endif
#define BELIEF   TTL                   /* `expiry.holder_deadline` */
#define LIFE     TTL                   /* `expiry.record_lifetime` */
#define MARGIN   1                     /* abort_margin: on_deposed is called at least so long before the deadline */

#if defined(ALONE) || defined(PAIR)
#define CAN_FAIL false
#else
#define CAN_FAIL true
#endif

/* --- the store -------------------------------------------------------------------------------------------------- */

mtype:holder = { NOBODY, MINE, MY_EARLIER, OTHER }; /* A's present wish, an earlier one of the same owner, B */
mtype:holder holder = NOBODY;
byte age;
bit  has_ended;
bit  ended_once;                       /* this incarnation was ended, and has to stay so */
mtype:heir = { ANYBODY, A, B };
mtype:heir heir = ANYBODY;
bit  is_foreign_value;                 /* the record shows a value of another term */
bit  waited;                           /* A has left this record to its heir for one backoff [E5] */
#ifdef PAIR
bit  b_waited;
#endif
bit  is_last_term;                     /* this incarnation is that of A's last term, so its token is no higher */

mtype:command = { CREATE, REPLACE, EXTEND, ADVERTISE, REMOVE, RESIGN };
#define GONE  0                        /* another incarnation, or none */
#define SAME  1                        /* this incarnation, written to since */
#define EXACT 2                        /* this incarnation and this revision */
typedef Request { mtype:command kind; bit is_earlier; byte expects; mtype:heir heir };
mtype:call = { NONE, ASKED, DONE, REFUSED };
mtype:call state = NONE;
Request request;
byte request_left;
Request late;
byte seen;
bit  applied;

/* --- what the observer sees [E4]: of tokens only their order is kept, so that there are finitely many ------------- */

#ifdef OBSERVED
byte token;                            /* of the last grant */
byte shown;                            /* the highest that the observer has shown */
typedef Answer { byte token; bit is_over; bit is_foreign_value };
Answer answer[2];

inline squeeze() {
    n = 4;
    do
    :: n > 0 ->
        if
        :: token != n && shown != n && answer[0].token != n && answer[1].token != n ->
            token = (token > n -> token - 1 : token); shown = (shown > n -> shown - 1 : shown);
            answer[0].token = (answer[0].token > n -> answer[0].token - 1 : answer[0].token);
            answer[1].token = (answer[1].token > n -> answer[1].token - 1 : answer[1].token)
        :: else
        fi;
        n--
    :: else -> break
    od;
    n = 0
}
byte n;
#endif

inline clear(q)      { q.kind = 0; q.is_earlier = 0; q.expects = 0; q.heir = 0 }
inline copy(from, to) {
    to.kind = from.kind; to.is_earlier = from.is_earlier; to.expects = from.expects; to.heir = from.heir
}
inline wrote(what)   { what = (what == EXACT -> SAME : what) }
inline write()       { wrote(request.expects); wrote(late.expects); wrote(seen); age = 0 }
inline vacate() {
    request.expects = GONE; late.expects = GONE; seen = GONE; holder = NOBODY; age = 0;
    has_ended = 0; ended_once = 0; heir = ANYBODY; is_last_term = 0; is_foreign_value = 0; waited = 0
#ifdef PAIR
    ; b_waited = 0
#endif
}
inline next(who) {
    vacate(); holder = who
#ifdef OBSERVED
    ; token++; squeeze()
#endif
}

#ifdef ADVERTISED_WITHOUT_THE_INCARNATION
#define MAY_ADVERTISE(q) true
#else
#define MAY_ADVERTISE(q) (q.expects != GONE) /* [E3] */
#endif

inline apply(q) {
  d_step {
    applied = 1;
    if
    :: q.kind == CREATE && holder == NOBODY -> next((q.is_earlier -> MY_EARLIER : MINE)); q.expects = EXACT
    :: q.kind == REPLACE && holder != NOBODY && q.expects == EXACT -> next((q.is_earlier -> MY_EARLIER : MINE));
#ifdef FIRST_VALUE_AFTER_THE_GRANT
        is_foreign_value = 1;
#endif
        q.expects = EXACT
#ifdef RETAKEN_BY_EXTENDING
    :: q.kind == EXTEND && holder == MY_EARLIER && q.expects != GONE && !q.is_earlier -> write(); holder = MINE
    :: q.kind == EXTEND && holder != NOBODY && q.expects != GONE && !(holder == MY_EARLIER && !q.is_earlier) -> write()
#else
    :: q.kind == EXTEND && holder != NOBODY && q.expects != GONE -> write()
#endif
    :: q.kind == ADVERTISE && holder != NOBODY && MAY_ADVERTISE(q) ->
        is_foreign_value = (q.expects == GONE); write();
#ifdef ADVERTISEMENT_DROPS_THE_END
        has_ended = 0;
#endif
        assert(has_ended || !ended_once) /* no term is revived [E3] */
    :: q.kind == RESIGN && holder != NOBODY && q.expects != GONE ->
        write(); has_ended = 1; ended_once = 1; heir = q.heir
    :: q.kind == REMOVE && holder != NOBODY && q.expects != GONE -> vacate()
    :: else -> applied = 0
    fi
  }
}

inline send(kind_, expects_, heir_) {
    state = ASKED; request_left = (kind_ == REMOVE || kind_ == RESIGN -> 0 : BELIEF);
    request.kind = kind_; request.expects = expects_; request.heir = heir_
}
inline hang_up() { state = NONE; request_left = 0; clear(request) }
inline unknown() {
    (CAN_FAIL);
    if
    :: state == ASKED && late.kind == 0 -> copy(request, late)
    :: true
    fi;
    hang_up()
}
inline deliver() {
    if
    :: CAN_FAIL && late.kind == 0 -> copy(request, late); /* it will arrive once more */
        apply(request)
    :: apply(request)
    fi;
    if
    :: applied -> state = DONE
    :: else    -> state = REFUSED; request_left = 0
    fi;
    request.kind = 0; request.heir = 0; applied = 0
}
inline deliver_late() {
    apply(late); applied = 0;
    if
    :: clear(late)
    :: CAN_FAIL -> late.expects = (late.kind == CREATE || late.kind == REPLACE -> GONE : late.expects)
    fi
}

active proctype network() {
    do
    :: atomic { state == ASKED -> deliver() }
    :: atomic { late.kind != 0 -> deliver_late() }
    :: atomic { late.kind != 0 -> clear(late) }
    od
}

/* --- A's callbacks, and the promises about them ----------------------------------------------------------------- */

bit  held;
byte left;                             /* ticks until the deadline of A's lease */
byte b_left;
bit  body;                             /* on_elected runs */
bit  is_deposed = 1;                   /* on_deposed was called for this term */
bit  is_deposing;                      /* ... and has not returned */

/* THE PROMISE of the lease: a body that has not reached its deadline is alone. */
#define promise() assert(!(body && left > 0 && b_left > 0))

inline depose() {
    assert(!is_deposed);               /* once per term [E2] */
    is_deposed = 1; is_deposing = 1
}
inline elect() {
    assert(is_deposed && !is_deposing && !body); /* on_deposed was called for the last term, and has returned [E2] */
    assert(!is_last_term);             /* a new term has a higher token [E1] */
    is_last_term = (seen != GONE);
#ifndef OBSERVED
    body = 1; is_deposed = 0; promise()
#endif
}
#ifdef DEPOSED_BY_EACH_REASON
#define NOT_DEPOSED true
#else
#define NOT_DEPOSED (!is_deposed)
#endif

#ifndef OBSERVED
active proctype callbacks() {
    do
#ifdef PAIR
    :: atomic { body && is_deposed -> body = 0 }
#else
    :: atomic { body -> body = 0 }     /* its work is done, or it was told to stop */
#endif
    :: atomic { is_deposing -> is_deposing = 0 }
    od
}

/* `keeping.Keeping`: it looks at the clock in every tick in which the process does not stand still. */
bit turn;
#ifdef DEPOSED_AFTER_THE_ANSWER
#define MAY_LOOK (state == NONE)
#else
#define MAY_LOOK true
#endif
active proctype keeper() {
    do
    :: atomic { turn -> turn = 0;
        if
        :: !is_deposed && left <= MARGIN && MAY_LOOK -> held = 0; depose()
        :: else
        fi }
    od
}
#endif

/* --- time ------------------------------------------------------------------------------------------------------- */

bit is_waiting;                        /* A pauses for one backoff */
bit b_waiting;
inline pass(ticks) { ticks = (ticks > 0 -> ticks - 1 : 0) }
inline tick() {
    age = (holder != NOBODY && age < LIFE -> age + 1 : age);
    pass(left); pass(b_left); pass(request_left); is_waiting = 0; b_waiting = 0
}
active proctype time() {
    do
#ifdef OBSERVED
    :: d_step { tick() }
#else
    :: d_step {
#if defined(ALONE) || defined(PAIR)
        timeout && !turn ->            /* who can do something does it before the next tick */
#else
        !turn ->
#endif
        assert(is_deposed || left > MARGIN); /* told in time, unless the process stands still [E2] */
        tick(); turn = 1 }
    :: d_step { CAN_FAIL -> tick(); turn = 1 } /* it stands still */
#endif
    od
}

#ifdef ALONE
bit is_begun;
#else
bit is_begun = 1;
#endif

/* --- A ---------------------------------------------------------------------------------------------------------- */

#ifdef ELECTED_WHILE_ON_DEPOSED_RUNS
#define HAS_RETURNED true
#else
#define HAS_RETURNED (!is_deposing)    /* [E2] */
#endif
#ifdef WAITS_FOR_THE_HEIR
#define MAY_TAKE false
#else
#define MAY_TAKE waited
#endif

active proctype candidate() {
    bit pauses;
    is_begun;
    do
    :: true;
campaign:                              /* `acquire.attempt_exclusive` [E1]: it writes the first value, too */
    atomic { send(CREATE, GONE, 0) };
    if
    :: atomic { state == DONE -> goto granted }
    :: atomic { state == REFUSED -> hang_up() }
    :: atomic { unknown() }
    fi;
look:
    if
    :: atomic { holder == NOBODY -> goto campaign }
    :: atomic { holder == MINE -> seen = SAME; goto adopt }
    :: atomic { (holder == OTHER || holder == MY_EARLIER) && !has_ended && age >= LIFE -> seen = EXACT; goto take_over }
    :: atomic { holder == MY_EARLIER && !has_ended -> /* `acquire._reclaim` [E7]: the earlier process is dead */
#ifdef RETAKEN_BY_EXTENDING
        seen = SAME; goto adopt
#else
        seen = EXACT; goto take_over
#endif
        }
    :: atomic { has_ended && heir != B -> seen = EXACT; goto take_over }
#ifdef HEIR_IGNORED                   /* harmless: an heir is a wish; old versions ignore it */
    :: atomic { has_ended && heir == B -> seen = EXACT; goto take_over }
#else
    :: atomic { has_ended && heir == B && MAY_TAKE -> seen = EXACT; goto take_over }
    :: atomic { has_ended && heir == B && !waited -> is_waiting = 1 } /* [E5] */
#endif
    :: atomic { holder != NOBODY && CAN_FAIL -> goto over } /* out of time */
    fi;
    atomic { !is_waiting ->
#ifndef WAITS_AGAIN_AT_EACH_LOOK
        waited = has_ended;            /* whose heir is dead is not waited for twice */
#endif
        goto look };

adopt:                                 /* `acquire._adopt` [2] */
    atomic { send(EXTEND, seen, 0); seen = GONE };
    if
    :: atomic { state == DONE -> goto granted }
    :: atomic { state == REFUSED -> hang_up(); goto look }
    :: atomic { unknown(); goto look }
    fi;

take_over:                             /* `acquire.take_over` */
    atomic { send(REPLACE, seen, 0); seen = GONE };
    if
    :: atomic { state == DONE -> goto granted }
    :: atomic { state == REFUSED -> hang_up(); goto look }
    :: atomic { unknown(); goto look }
    fi;

granted:
    atomic { seen = (request.expects != GONE -> SAME : GONE); held = 1; left = request_left; hang_up() };
    if                                 /* the token is drawn, and the deadline looked at, before on_elected [E1] */
#ifdef ELECTED_WITHOUT_A_LOOK_AT_THE_DEADLINE
    :: atomic { HAS_RETURNED -> elect() }
#else
    :: atomic { left > MARGIN && HAS_RETURNED -> elect() }
#endif
    :: atomic { left <= MARGIN || CAN_FAIL -> goto release }
    fi;

#ifdef ALONE
progress_a:
#endif
    do
#ifndef PAIR
    :: atomic { held && state == NONE -> send(EXTEND, seen, 0) }
    :: atomic { held && state == NONE -> send(ADVERTISE, seen, 0) }
#endif
    :: atomic { state == DONE ->
        if
#ifdef LATE_SUCCESS_REVIVES
        :: true -> assert(held && left > 0); /* a loss is final, whatever is answered later [E3] */
            held = 1; left = request_left; promise()
#else
        :: held && left > 0 -> left = request_left; promise()
        :: !held || left == 0 -> held = 0 /* once past, for good */
#endif
        fi;
        hang_up() }
    :: atomic { state == REFUSED -> held = 0; hang_up() }
    :: atomic { state != NONE && CAN_FAIL -> unknown() }
#ifdef OBSERVED
    :: break
#else
    :: atomic { !held && NOT_DEPOSED -> depose() }
    :: atomic { NOT_DEPOSED -> depose(); pauses = 1 } /* max_term [E6]; renewed or not until the body ends */
#ifdef NOT_DEPOSED_AT_THE_END_OF_THE_BODY
    :: atomic { !body -> break }
#else
    :: atomic { !body && NOT_DEPOSED -> depose() }
#endif
#ifdef RELEASED_BEFORE_THE_BODY_ENDED
    :: atomic { is_deposed -> break }
#else
    :: atomic { !body && is_deposed -> break }
#endif
    :: atomic { CAN_FAIL ->            /* it dies */
        body = 0; is_deposed = 1; is_deposing = 0; held = 0; left = 0; unknown(); goto over }
#endif
    od;
    if
    :: atomic { state == DONE || state == REFUSED -> hang_up() }
    :: atomic { state == ASKED && CAN_FAIL -> unknown() }
    :: atomic { state == NONE }
    fi;

release:                               /* [E2]: after the body */
    atomic { held = 0; left = (body -> left : 0);
        if
        :: send(REMOVE, seen, ANYBODY)
        :: send(RESIGN, seen, B)       /* [E5] */
        :: send(RESIGN, seen, ANYBODY)
        fi };
    if
    :: atomic { state == DONE || state == REFUSED -> hang_up() }
    :: atomic { unknown(); goto release }
    :: atomic { unknown() }
    fi;
#if !defined(NO_PAUSE_AFTER_MAX_TERM) && !defined(OBSERVED)
    if                                 /* [E6] */
    :: atomic { pauses -> pauses = 0; is_waiting = 1 }
    :: !pauses
    fi;
    !is_waiting;
#endif
over:
    if                                 /* `release.sweep` */
    :: atomic { holder == MINE && !has_ended -> seen = SAME; goto release }
    :: true
    fi;
    !body;
    atomic {                           /* the next wish has another holder */
        seen = GONE; pauses = 0;
#ifndef ADOPTS_ITS_EARLIER_TERM
        holder = (holder == MINE -> MY_EARLIER : holder);
        late.is_earlier = (late.kind != 0)
#endif
    }
    od
}

/* --- B ---------------------------------------------------------------------------------------------------------- */

#ifndef ALONE
#ifdef RECLAIMED_FROM_A_LIVING_PROCESS
#define IS_FREE (holder == NOBODY || has_ended || age >= LIFE || holder == MINE)
#else
#define IS_FREE (holder == NOBODY || has_ended || age >= LIFE)
#endif
inline lead() { next(OTHER); b_left = BELIEF; promise() }
inline renew_b() { write(); b_left = BELIEF; promise() }
inline resign_b() {
    b_left = 0; write(); has_ended = 1; ended_once = 1;
    if
    :: heir = A
    :: heir = ANYBODY
    fi
}
#ifdef PAIR
active proctype rival() {
    do
    :: true;
wait:
    if
    :: atomic { holder == NOBODY || age >= LIFE || (has_ended && (heir != A || b_waited)) -> lead() }
    :: atomic { has_ended && heir == A && !b_waited -> b_waiting = 1; goto left_to_the_heir }
    fi;
progress_b:
    do
    :: atomic { holder == OTHER && b_left > 0 -> renew_b() }
    :: atomic { holder == OTHER && b_left > 0 -> b_left = 0; vacate(); break }
    :: atomic { holder == OTHER && b_left > 0 -> resign_b(); break }
    :: atomic { b_left == 0 -> break }
    od;
    goto wait;
left_to_the_heir:
    atomic { !b_waiting -> b_waited = has_ended }
    od
}
#else
active proctype rival() {
    do
    :: atomic { IS_FREE -> lead() }
    :: atomic { holder == OTHER && b_left > 0 -> renew_b() } /* a renewal, or another value of this term */
    :: atomic { holder == OTHER && b_left > 0 -> b_left = 0; vacate() }
    :: atomic { holder == OTHER && b_left > 0 -> resign_b() }
    od
}
#endif
#endif

/* --- the observer ----------------------------------------------------------------------------------------------- */

#ifdef OBSERVED
#ifdef SHOWN_WITHOUT_COMPARING_TOKENS
#define MAY_SHOW(k) (!answer[k].is_over)
#elif defined(SHOWS_A_TERM_THAT_IS_OVER)
#define MAY_SHOW(k) (answer[k].token >= shown)
#else
#define MAY_SHOW(k) (!answer[k].is_over && answer[k].token >= shown)
#endif
inline ask(k) {
    answer[k].token == 0 && holder != NOBODY -> answer[k].token = token;
    answer[k].is_over = (has_ended || age >= LIFE); /* `context.is_over` */
    answer[k].is_foreign_value = is_foreign_value
}
inline drop(k) { answer[k].token = 0; answer[k].is_over = 0; answer[k].is_foreign_value = 0; squeeze() }
bit shows_over, shows_foreign_value;
inline present(k) {
    answer[k].token != 0 && MAY_SHOW(k) ->
    assert(answer[k].token >= shown);  /* never a lower token after a higher one [E4] */
    shows_over = answer[k].is_over; shows_foreign_value = answer[k].is_foreign_value;
    assert(!shows_over);               /* its lease was in force when the store answered [E4] */
    assert(!shows_foreign_value);      /* with a value of its own term [E3] */
    shown = answer[k].token; drop(k)
}
active proctype observer() {           /* two reads at once: one for a notification, one by the clock */
    do
    :: d_step { ask(0) }
    :: d_step { ask(1) }
    :: d_step { present(0) }
    :: d_step { present(1) }
    :: d_step { answer[0].token != 0 -> drop(0) }
    :: d_step { answer[1].token != 0 -> drop(1) }
    od
}
#endif

#ifdef ALONE
init {
    atomic {                           /* any state that the dead can have left, and any message of theirs */
        if :: holder = MY_EARLIER :: holder = OTHER :: holder = NOBODY fi;
        if :: age = 0 :: holder != NOBODY -> age = LIFE fi;
        if
        :: holder != NOBODY -> has_ended = 1; ended_once = 1; if :: heir = A :: heir = B :: heir = ANYBODY fi
        :: true
        fi;
        late.is_earlier = 1;
        if
        :: late.is_earlier = 0
        :: late.kind = CREATE
        :: late.kind = REPLACE; late.expects = EXACT
        :: late.kind = EXTEND; late.expects = SAME
        :: late.kind = ADVERTISE; late.expects = SAME
        :: late.kind = RESIGN; late.expects = SAME; late.heir = B
        :: late.kind = REMOVE; late.expects = SAME
        fi;
        is_begun = 1
    }
}
#endif
