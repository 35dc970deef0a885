/* A contender that takes over by observation, where the store's answers tell no time: never while the holder believes.

   In it: a holder that renews, and a contender that reads, remembers since when the record stands still, and
   replaces it. Requests and answers are lost, late and doubled as in contenders.pml.
   Nothing is bounded but this: at any instant at most one renewal is under way for which nobody waits any more.

   [n] is a rule in docs/protocol.md; a name in backquotes is defined in core/src/lockstead/protocol/. Capitals after
   #ifdef are faults. */

/* Time is whole ticks of the contender's clock. A deadline is kept as the ticks left until it. */
#define TTL      2
#define DRIFT    1                     /* the margin on either side */
#define GAIN     (2 * DRIFT)           /* by this the contender's clock may outrun the holder's within a ttl */
#define BELIEF   (TTL - DRIFT + GAIN)  /* `expiry.holder_deadline`, if the clocks differ as much as they may */
#ifdef NO_MARGIN_OF_THE_OBSERVER
#define LIFE     TTL
#else
#define LIFE     (TTL + DRIFT)         /* `expiry.record_lifetime` */
#endif

/* --- the store -------------------------------------------------------------------------------------------------- */

bit stands = true;                     /* the holder's record; false: the contender has replaced it */

/* What the contender has seen, and what its request expects, as what it is to the record that stands now. */
#define NOTHING 0
#define SAME    1                      /* written to since */
#define EXACT   2                      /* as it stands */
byte first;                            /* the state whose first sight is remembered: `context.ObservationCache` [14] */
byte last;                             /* the state that the last read showed */

inline wrote(what) { what = (what == EXACT -> SAME : what) }

/* --- the holder: it has the lease, and renews it ---------------------------------------------------------------- */

byte left = BELIEF;                    /* ticks of belief */
byte worth;                            /* what the answer to the renewal under way is worth: counted from the send */
bit  is_asking, is_done, is_late;

#define BELIEVES (left > 0)

inline renew() { d_step { wrote(first); wrote(last) } }

active proctype holder() {
    do
    :: atomic { BELIEVES && !is_asking -> is_asking = true; is_done = false; worth = BELIEF }
    :: atomic { is_asking && !is_done && stands -> renew(); is_done = true; if :: is_late = true :: true fi }
    :: atomic { is_asking && is_done -> /* `LeaseState.renewed`: once past, for good */
        left = (BELIEVES && worth > left -> worth : left);
        is_asking = false; is_done = false; worth = 0
    }
    :: atomic { is_asking ->           /* `OutcomeUnknown` */
        if :: !is_done -> is_late = true :: true fi;
        is_asking = false; is_done = false; worth = 0
    }
    :: atomic { is_late -> if :: stands -> renew() :: true fi; if :: is_late = false :: true fi }
    od
}

/* --- the contender ---------------------------------------------------------------------------------------------- */

byte since_first;                      /* ticks since the receipt of the first sight of that state */
byte since_sent;                       /* ticks since the send of the read under way: only a fault looks at it */
byte watched;                          /* what since_first was at that send */

active proctype contender() {
look:
    atomic { since_sent = 0; watched = since_first; last = NOTHING };
    atomic { stands -> last = EXACT }; /* the store shows it, some time after the send */
    atomic {                           /* the answer is received, some time after that: `context.is_over` [9] */
        if
#ifdef OBSERVED_WITHOUT_THE_REVISION
        :: first != NOTHING
#else
        :: first == EXACT && last == EXACT
#endif
            ->
            if
            :: watched >= LIFE -> goto take_over
            :: else
            fi
        :: else ->
            first = last;
#ifdef OBSERVED_FROM_THE_SEND
            since_first = since_sent
#else
            since_first = 0
#endif
        fi;
        goto look
    };

take_over:                             /* `acquire.take_over`: refused if the record was written to since */
    if
    :: atomic { last == EXACT -> stands = false; assert(!BELIEVES) } /* THE PROMISE */
    :: atomic { true -> goto look }
    fi
}

inline pass(ticks)   { ticks = (ticks > 0 -> ticks - 1 : 0) }
inline count(ticks)  { ticks = (ticks < LIFE -> ticks + 1 : LIFE) } /* beyond LIFE no tick makes a difference */

active proctype time() {
    do
    :: d_step { pass(left); pass(worth); count(since_first); count(since_sent) }
    od
}
