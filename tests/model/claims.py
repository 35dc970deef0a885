"""The properties of the models, and the faults that must violate them.

A fault is a switch in a model's text. It must violate the property that is named here; any other failure is not
enough.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

EXCLUSIVE: Final = "assertion violated  !((((state[0]==2)&&(left[0]>0))&&((state[1]==2)&&(left[1]>0))))"
FINAL: Final = "assertion violated ((state[me]==2)&&(left[me]>0))"
STANDS: Final = "assertion violated (stands||"
ONE_TOKEN: Final = "assertion violated ((known[lease]==0)||"
ORDER: Final = "assertion violated (((known["
STILL: Final = "assertion violated  !((left>0))"
NO_READER_BESIDE_A_WRITER: Final = "assertion violated ( !(((("
WITHIN_THE_LIMIT: Final = "assertion violated (((( ((held"
ONE_FOR_A_SLOT: Final = "assertion violated (( !((((held"
ONE_BODY: Final = "assertion violated  !(((body&&(left>0))"
DEPOSED_ONCE: Final = "assertion violated  !(is_deposed)"
DEPOSED_IN_TIME: Final = "assertion violated (is_deposed||"
DEPOSED_BEFORE: Final = "assertion violated ((is_deposed&& !(is_deposing))"
TERM_IS_NEW: Final = "assertion violated  !(is_last_term)"
TERM_IS_FINAL: Final = "assertion violated (held&&"
STAYS_ENDED: Final = "assertion violated (has_ended||"
OWN_VALUE: Final = "assertion violated  !(shows_foreign_value)"
NOT_OVER: Final = "assertion violated  !(shows_over)"
NO_LOWER_TOKEN: Final = "assertion violated (answer"
PROGRESS: Final = "non-progress cycle"


@dataclass(frozen=True, slots=True)
class Proof:
    """A model whose promises hold in every state that can be reached. states_min: fewer would be an empty proof.

    is_progress: the promise is that what is labelled as progress happens again and again.
    """

    model: str
    says: str
    states_min: int
    switches: tuple[str, ...] = ()
    is_progress: bool = False


@dataclass(frozen=True, slots=True)
class Fault:
    """A model with something left out, and how the text of the promise that it breaks begins."""

    model: str
    breaks: str
    switches: tuple[str, ...]

    @property
    def name(self) -> str:
        """How a test and a table call it."""
        return "+".join(self.switches).lower()

    @property
    def is_progress(self) -> bool:
        """Whether it is a promise of progress that it breaks."""
        return self.breaks == PROGRESS


PROOFS: Final = (
    Proof("contenders", "two contenders never both believe; what is lost stays lost", 1_000_000),
    Proof("members", "nobody works under a lease whose record is gone", 500_000),
    Proof("tokens", "tokens grow in the order of holding; one lease, one token", 500_000),
    Proof("observation", "who watches a record takes it over only when its holder believes no more", 5_000),
    Proof("shared", "no reader beside a writer, also if a writer becomes a reader", 1_000_000, ("DOWNGRADE",)),
    Proof("permits", "no more holders than the limit that may be reported, no two in one slot", 1_000_000),
    Proof("election", "on_deposed once per term and in time; terms grow; one body at a time", 100_000),
    Proof("election", "observers see no lower token, and no value of another term", 1_000_000, ("OBSERVED",)),
    Proof("shared", "a reader alone gets in again and again", 5_000, ("ALONE_R",), is_progress=True),
    Proof("shared", "a writer alone gets in again and again", 3_000, ("ALONE_W",), is_progress=True),
    Proof("shared", "a writer gets in while a reader comes again and again", 1_000, ("TOGETHER",), is_progress=True),
    Proof("election", "a candidate alone is elected again and again", 3_000, ("ALONE",), is_progress=True),
    Proof("election", "max_term lets another candidate in, again and again", 1_000, ("PAIR",), is_progress=True),
)

SECOND_LINES: Final = (
    Proof(
        "members", "a dead registration is removed by its revision too", 500_000, ("DEAD_REMOVED_BY_INCARNATION_ALONE",)
    ),
    Proof("members", "a member's belief, once past, is over for good", 500_000, ("LATE_SUCCESS_REVIVES",)),
)
"""Rules that the promises can spare one at a time, but not both: see the fault that switches on both."""

HARMLESS: Final = (
    Proof("shared", "the mark is removed by its revision", 1_000_000, ("UNMARKED_BY_INCARNATION_ALONE", "DOWNGRADE")),
    Proof("election", "an heir is waited for", 50_000, ("HEIR_IGNORED",)),
)
"""Rules that serve fairness alone: the promises of safety hold without them."""

LARGE: Final = (
    Proof("shared", "no reader beside a writer, or a contender of an old version; tickets pass the mark", 3_000_000),
)
"""What takes too long for every run of the tests."""

DEEP: Final = (
    Proof("members", "the same, with a release and a reclaim at once", 5_000_000, ("ENDERS=2",)),
    Proof("shared", "the same, with longer leases", 10_000_000, ("LIFE=2",)),
    Proof("permits", "the same, down to a limit of 0", 3_000_000, ("LEAST=0",)),
    Proof("permits", "the same, with three takers", 10_000_000, ("OTHERS=2",)),
)
"""What takes minutes."""

FAULTS: Final = (
    Fault("contenders", EXCLUSIVE, ("NO_MARGIN_OF_THE_HOLDER",)),
    Fault("contenders", EXCLUSIVE, ("NO_MARGIN_OF_THE_CONTENDER",)),
    Fault("contenders", EXCLUSIVE, ("DEADLINE_FROM_THE_ANSWER",)),
    Fault("contenders", EXCLUSIVE, ("TAKEOVER_BY_INCARNATION_ALONE",)),
    Fault("contenders", EXCLUSIVE, ("TAKEOVER_BY_REVISION_ALONE",)),
    Fault("contenders", EXCLUSIVE, ("RENEWAL_WITHOUT_INCARNATION",)),
    Fault("contenders", EXCLUSIVE, ("REMOVAL_WITHOUT_CONDITION",)),
    Fault("contenders", FINAL, ("LATE_SUCCESS_REVIVES",)),
    Fault("members", STANDS, ("READ_BEFORE_REGISTERING",)),
    Fault("members", STANDS, ("ATTACH_WITHOUT_LOOKING",)),
    Fault("members", STANDS, ("BELIEVES_THE_REGISTRATION_ALONE",)),
    Fault("members", STANDS, ("BELIEVES_THE_RECORD_ALONE",)),
    Fault("members", STANDS, ("READ_WITHOUT_AGE",)),
    Fault("members", STANDS, ("MEMBER_REMOVES_AT_RELEASE",)),
    Fault("members", STANDS, ("LISTED_WITHOUT_AN_ANSWER_THAT_SHOWS_CLOSING",)),
    Fault("members", STANDS, ("REMOVED_WITHOUT_DRAIN",)),
    Fault("members", STANDS, ("REMOVED_AT_THE_BOUND",)),
    Fault("members", STANDS, ("DEAD_REMOVED_BY_INCARNATION_ALONE", "LATE_SUCCESS_REVIVES")),
    Fault("tokens", ORDER, ("TOKEN_WITHOUT_PROOF", "ONLY_THE_ORDER")),
    Fault("tokens", ORDER, ("DRAWN_BEFORE_THE_LOOK", "ONLY_THE_ORDER")),
    Fault("tokens", ORDER, ("PUBLISHED_WITHOUT_THE_INCARNATION", "ONLY_THE_ORDER")),
    Fault("tokens", ONE_TOKEN, ("PUBLISHED_WITHOUT_THE_REVISION",)),
    Fault("tokens", ONE_TOKEN, ("TOKEN_NOT_SHARED",)),
    Fault("observation", STILL, ("NO_MARGIN_OF_THE_OBSERVER",)),
    Fault("observation", STILL, ("OBSERVED_FROM_THE_SEND",)),
    Fault("observation", STILL, ("OBSERVED_WITHOUT_THE_REVISION",)),
    Fault("shared", NO_READER_BESIDE_A_WRITER, ("NO_MARGIN",)),
    Fault("shared", NO_READER_BESIDE_A_WRITER, ("REPLACED_BY_INCARNATION_ALONE",)),
    Fault("shared", NO_READER_BESIDE_A_WRITER, ("LISTS_WITHOUT_A_MARK",)),
    Fault("shared", NO_READER_BESIDE_A_WRITER, ("LISTS_BEFORE_THE_MARK",)),
    Fault("shared", NO_READER_BESIDE_A_WRITER, ("LISTS_WITHOUT_AN_ANSWER_TO_THE_MARK",)),
    Fault("shared", NO_READER_BESIDE_A_WRITER, ("REPLACES_AT_THE_BOUND",)),
    Fault("shared", NO_READER_BESIDE_A_WRITER, ("NOT_LISTED_AGAIN",)),
    Fault("shared", NO_READER_BESIDE_A_WRITER, ("DEAD_REMOVED_BY_INCARNATION_ALONE", "DOWNGRADE")),
    Fault("shared", NO_READER_BESIDE_A_WRITER, ("JOINS_WITHOUT_LOOKING",)),
    Fault("shared", NO_READER_BESIDE_A_WRITER, ("JOINS_A_MARKED_GROUP",)),
    Fault("shared", NO_READER_BESIDE_A_WRITER, ("JOIN_IGNORES_THE_INCARNATION",)),
    Fault("shared", NO_READER_BESIDE_A_WRITER, ("READ_BEFORE_REGISTERING",)),
    Fault("shared", NO_READER_BESIDE_A_WRITER, ("READ_WITHOUT_AGE",)),
    Fault("shared", NO_READER_BESIDE_A_WRITER, ("TICKET_CHECKED_BEFORE_REGISTERING",)),
    Fault("shared", NO_READER_BESIDE_A_WRITER, ("BELIEVES_THE_REGISTRATION_ALONE",)),
    Fault("shared", NO_READER_BESIDE_A_WRITER, ("BELIEVES_THE_RECORD_ALONE",)),
    Fault("shared", NO_READER_BESIDE_A_WRITER, ("FIRST_READER_BELIEVES_ITS_GRANT",)),
    Fault("shared", NO_READER_BESIDE_A_WRITER, ("WITHDRAWS_WHILE_IT_BELIEVES",)),
    Fault("shared", NO_READER_BESIDE_A_WRITER, ("LATE_SUCCESS_REVIVES",)),
    Fault("shared", NO_READER_BESIDE_A_WRITER, ("LAST_OUT_WITHOUT_A_MARK",)),
    Fault("shared", NO_READER_BESIDE_A_WRITER, ("LAST_OUT_BY_INCARNATION_ALONE",)),
    Fault("shared", NO_READER_BESIDE_A_WRITER, ("DOWNGRADED_REMOVES_BY_INCARNATION", "DOWNGRADE")),
    Fault("shared", PROGRESS, ("MARK_OF_A_DEAD_WRITER_STAYS", "ALONE_R")),
    Fault("shared", PROGRESS, ("LEFT_TO_ANYBODY", "TOGETHER")),
    Fault("permits", ONE_FOR_A_SLOT, ("NO_MARGIN",)),
    Fault("permits", WITHIN_THE_LIMIT, ("GATE_READ_BEFORE_THE_SLOT",)),
    Fault("permits", WITHIN_THE_LIMIT, ("GATE_NOT_READ",)),
    Fault("permits", WITHIN_THE_LIMIT, ("ADOPTED_WITHOUT_READING_THE_GATE",)),
    Fault("permits", WITHIN_THE_LIMIT, ("LIMIT_SET_WITHOUT_THE_REVISION",)),
    Fault("permits", WITHIN_THE_LIMIT, ("LISTED_BEFORE_THE_LIMIT_IS_SET",)),
    Fault("permits", WITHIN_THE_LIMIT, ("LISTED_WITHOUT_AN_ANSWER",)),
    Fault("permits", WITHIN_THE_LIMIT, ("SHRUNK_WITHOUT_A_LIST",)),
    Fault("permits", WITHIN_THE_LIMIT, ("LATE_SUCCESS_REVIVES",)),
    Fault("election", DEPOSED_ONCE, ("DEPOSED_BY_EACH_REASON",)),
    Fault("election", DEPOSED_IN_TIME, ("DEPOSED_AFTER_THE_ANSWER",)),
    Fault("election", DEPOSED_IN_TIME, ("ELECTED_WITHOUT_A_LOOK_AT_THE_DEADLINE",)),
    Fault("election", DEPOSED_IN_TIME, ("NOT_DEPOSED_AT_THE_END_OF_THE_BODY",)),
    Fault("election", DEPOSED_BEFORE, ("ELECTED_WHILE_ON_DEPOSED_RUNS",)),
    Fault("election", ONE_BODY, ("RELEASED_BEFORE_THE_BODY_ENDED",)),
    Fault("election", TERM_IS_FINAL, ("LATE_SUCCESS_REVIVES",)),
    Fault("election", STAYS_ENDED, ("ADVERTISEMENT_DROPS_THE_END",)),
    Fault("election", OWN_VALUE, ("ADVERTISED_WITHOUT_THE_INCARNATION", "OBSERVED")),
    Fault("election", OWN_VALUE, ("FIRST_VALUE_AFTER_THE_GRANT", "OBSERVED")),
    Fault("election", NO_LOWER_TOKEN, ("SHOWN_WITHOUT_COMPARING_TOKENS", "OBSERVED")),
    Fault("election", NOT_OVER, ("SHOWS_A_TERM_THAT_IS_OVER", "OBSERVED")),
    Fault("election", PROGRESS, ("WAITS_FOR_THE_HEIR", "ALONE")),
    Fault("election", PROGRESS, ("WAITS_AGAIN_AT_EACH_LOOK", "ALONE")),
    Fault("election", PROGRESS, ("NO_PAUSE_AFTER_MAX_TERM", "PAIR")),
    Fault("election", TERM_IS_NEW, ("ADOPTS_ITS_EARLIER_TERM",)),
    Fault("election", TERM_IS_NEW, ("RETAKEN_BY_EXTENDING",)),
    Fault("election", ONE_BODY, ("RECLAIMED_FROM_A_LIVING_PROCESS",)),
)
