/* Fencing tokens that are drawn from a companion record: they grow in the order in which leases were held, so a
   superseded holder never gets one above its successor's; and all who work under one lease have the same one.

   In it: the draw, the publication and its proof, by two workers that may be siblings, or the one superseded by the
   other. Leases come and go at any instant (expiry, a break, a reclaim, a deletion), so nothing here rests on time or
   on belief. Every request may be lost, or arrive late, or several times; every answer may be lost.

   [n] is a rule in docs/protocol.md; a name in backquotes is defined in core/src/lockstead/protocol/. Capitals after
   #ifdef are faults; ONLY_THE_ORDER looks at that promise alone. */

/* Bounds, so that the states are finitely many. */
#define GRANTS 3                       /* leases on the key in a run */
#define DRAWS  4                       /* steps of the companion's counter */

/* --- the store: the lock's record, and its companion ------------------------------------------------------------ */

byte incarnation;                      /* of the record that stands; grows with every grant */
bit  stands;
byte token;                            /* published in the record; 0: none yet */
byte companion;                        /* the counter: every draw moves it */

mtype:command = { DRAW, PUBLISH };

typedef Request {
    mtype:command kind;
    byte token;
    byte inc;
    bit  is_exact                      /* whether nothing was written to the record since the look */
};

mtype:call = { NONE, ASKED, DONE, REFUSED };

typedef Call { mtype:call state = NONE; Request request };
Call    call[2];
Request late;
bit     is_exact[2];                   /* whether the record is still as this worker saw it */

inline clear(q)       { q.kind = 0; q.token = 0; q.inc = 0; q.is_exact = 0 }
inline copy(from, to) { to.kind = from.kind; to.token = from.token; to.inc = from.inc; to.is_exact = from.is_exact }

inline wrote() {
    is_exact[0] = 0; is_exact[1] = 0; late.is_exact = 0; call[0].request.is_exact = 0; call[1].request.is_exact = 0
}

#ifdef PUBLISHED_WITHOUT_THE_REVISION
#define MAY_PUBLISH(q) (stands && q.inc == incarnation)
#elif defined(PUBLISHED_WITHOUT_THE_INCARNATION)
#define MAY_PUBLISH(q) stands
#else
#define MAY_PUBLISH(q) (stands && q.inc == incarnation && q.is_exact)
#endif

bit applied;

inline apply(q) {
  d_step {
    applied = true;
    if
    :: q.kind == DRAW && companion < DRAWS    -> companion++
    :: q.kind == PUBLISH && MAY_PUBLISH(q)    -> token = q.token; wrote()
    :: else -> applied = false
    fi
  }
}

inline send(kind_, token_, inc_, exact_) {
    call[me].state = ASKED; call[me].request.kind = kind_; call[me].request.token = token_;
    call[me].request.inc = inc_; call[me].request.is_exact = exact_
}
inline hang_up() { call[me].state = NONE; clear(call[me].request) }

/* `OutcomeUnknown`: the request was lost, or its answer was, or it is late. */
inline unknown() {
    if
    :: call[me].state == ASKED && late.kind == 0 -> copy(call[me].request, late)
    :: true
    fi;
    hang_up()
}

inline deliver(p) {
    if
    :: late.kind == 0 -> copy(call[p].request, late) /* it will arrive once more */
    :: true
    fi;
    apply(call[p].request);
    if
    :: applied -> call[p].state = DONE; call[p].request.token = (call[p].request.kind == DRAW -> companion : 0)
    :: else    -> call[p].state = REFUSED; call[p].request.token = 0
    fi;
    call[p].request.kind = 0; call[p].request.inc = 0; call[p].request.is_exact = 0;
    applied = 0
}

active proctype network() {
end_network:
    do
    :: atomic { call[0].state == ASKED -> deliver(0) }
    :: atomic { call[1].state == ASKED -> deliver(1) }
    :: atomic { late.kind != 0 -> apply(late); applied = 0; if :: clear(late) :: true fi }
    :: atomic { late.kind != 0 -> clear(late) } /* lost after all */
    od
}

/* Leases come and go, and are renewed. */
active proctype leases() {
end_leases:
    do
    :: atomic { incarnation < GRANTS -> incarnation++; stands = true; token = 0; wrote() } /* Create or Replace */
    :: atomic { stands -> stands = false; token = 0; wrote() } /* Remove */
    :: atomic { stands -> wrote() }    /* a renewal */
    od
}

/* --- THE PROMISES ----------------------------------------------------------------------------------------------- */

byte known[GRANTS + 1];                /* by incarnation: the token that its workers present to the resource */

inline got(lease, number) {
    d_step {
#ifndef ONLY_THE_ORDER
        assert(known[lease] == 0 || known[lease] == number); /* one lease, one token */
#endif
        known[lease] = number;
        assert(known[1] == 0 || known[2] == 0 || known[1] < known[2]);
        assert(known[1] == 0 || known[3] == 0 || known[1] < known[3]);
        assert(known[2] == 0 || known[3] == 0 || known[2] < known[3])
    }
}

/* --- the protocol: `fence.draw_token` [10] ---------------------------------------------------------------------- */

#define IS_MINE (stands && incarnation == lease)

proctype worker(byte me) {
    byte lease, drawn;

    do
    :: true;
#ifdef DRAWN_BEFORE_THE_LOOK
        atomic { companion = (companion < DRAWS -> companion + 1 : DRAWS); drawn = companion };
#endif
end_of_leases:
        atomic { stands -> lease = incarnation }; /* granted, or attached beside another worker */

look:
        if
        :: atomic { !IS_MINE -> goto none }
#ifdef TOKEN_NOT_SHARED
        :: atomic { IS_MINE -> is_exact[me] = true }
#else
        :: atomic { IS_MINE && token != 0 -> got(lease, token); goto none } /* a sibling's that got there first */
        :: atomic { IS_MINE && token == 0 -> is_exact[me] = true }
#endif
        fi;

#ifndef DRAWN_BEFORE_THE_LOOK
        /* `context.draw`: after the look, so it is above whatever an earlier lease has published */
        atomic { drawn = 0; send(DRAW, 0, 0, 0) };
        if
        :: atomic { call[me].state == DONE -> drawn = call[me].request.token; hang_up() }
        :: atomic { call[me].state == REFUSED -> hang_up(); goto none } /* beyond the bounds */
        :: atomic { unknown(); goto none }
        fi;
#endif

        /* the proof: it stands in the record of this incarnation, whose state was seen before the draw */
#ifdef TOKEN_WITHOUT_PROOF
        atomic { got(lease, drawn); goto none };
#endif
        atomic { send(PUBLISH, drawn, lease, is_exact[me]); is_exact[me] = 0 };
        if
        :: atomic { call[me].state == DONE -> hang_up(); got(lease, drawn) }
        :: atomic { call[me].state == REFUSED -> hang_up(); goto look }
        :: atomic { unknown(); goto look }
        fi;

none:
        atomic { lease = 0; drawn = 0; is_exact[me] = 0 }
    od
}

init { atomic { run worker(0); run worker(1) } }
