/*
 * Who owns a session: a model of the protocol of internal/eventlog (Nodes, and
 * Node, Rest, Claim, Epoch and Expect of an Entry). How to run it, what it
 * leaves out and what it found: README.md.
 *
 * There is one session. A client asks CALLS times for a tool call that must not
 * happen twice. Nodes beat, take the session, claim it, start the call, act,
 * and record the outcome. A process may rest between any two steps for as long
 * as it likes: that is a pause, a slow network and a partition. What costs a
 * lease, a node or an answer is bounded by FAULTS, so that "in the end all is
 * done" can be asked; without such a bound nothing could be promised.
 *
 * Each NO_ or other switch below takes one guard away. ./check tries them all.
 */

#ifndef NODES
#define NODES 2
#endif
#ifndef CALLS
#define CALLS 2
#endif
#ifndef FAULTS
#define FAULTS 3
#endif
#ifndef TTL
#define TTL 2 /* of a lease, in ticks */
#endif
#define NOBODY NODES

/* The store. A head is not a number here: a node is behind once something was
   appended that it has not read, which is all that a head is compared for. */
byte epoch = 0;
byte owner = NOBODY;  /* whose claim gave the epoch: session.State.Owner */
byte holder = NOBODY;
bool want = 0;        /* the stream wants work */
byte asked = 0;       /* calls that the client asked for */
byte closed = 0;      /* calls with a terminal event */
bool started = 0;     /* the call after those has its started event */
byte startedIn = 0;   /* the epoch of that event */
bool behind[NODES];
byte lease[NODES] = TTL; /* what is left of it, by the store's clock */

/* The nodes. Clocks are what is left on them, so that no node's time of day
   appears anywhere (I-16). */
bool up[NODES] = 1;
bool works[NODES];       /* it drives the session */
byte own[NODES] = TTL; /* what a node believes is left of its lease */
byte beat[NODES];        /* the same of the beat that is under way */
bool lapsed[NODES];      /* the lease has ended since the drive began, by the node's own clock */

/* A yield on the wire: it may arrive long after its sender stopped waiting. Only
   a node that drains yields, and it begins nothing afterwards. */
bool drains[NODES];
bool yield[NODES];
bool yieldFits[NODES]; /* nothing was appended since it was sent */

/* The world, and what is only observed. */
byte highest = 0; /* epoch so far */
byte effects[CALLS];
byte faults = FAULTS;

#if NODES == 2
#define SUM(f) (f(0) + f(1))
#else
#define SUM(f) (f(0) + f(1) + f(2))
#endif
#define TAKES(i) (up[i] && !drains[i])
#define RUNS(i) (lease[i] + own[i] + beat[i] > 0)
#define ENDS(i) (up[i] && (own[i] == 1 || beat[i] == 1))
#define TAKERS SUM(TAKES)
#define ALIVE(i) (lease[i] > 0)
#define DONE (asked == CALLS && closed == CALLS && !want)

inline appended(i) { /* the others have not read it, and no yield fits any more */
	k = 0;
	do
	:: k < NODES -> if :: k != i && works[k] -> behind[k] = 1 :: else fi; yieldFits[k] = 0; k++
	:: else -> k = 0; break
	od
}

/* May an owner's append by i, without a claim, commit? */
#ifdef NO_HOLDER
#define HOLDS(i) 1
#else
#define HOLDS(i) (holder == i || holder == NOBODY)
#endif
#ifdef NO_HEAD
#define READ(i) 1
#else
#define READ(i) (!behind[i])
#endif
#ifdef NO_EPOCH
#define SAME(e) 1
#else
#define SAME(e) (epoch == e)
#endif
#ifdef NO_LIVENESS
#define MAY_CLAIM(i) (epoch < 6) /* they would take it from each other for ever */
#else
#define MAY_CLAIM(i) (holder == i || holder == NOBODY || !ALIVE(holder))
#endif

#if defined(SLOW) || defined(NO_LIVENESS)
#define BELIEVES(i) 1
#else
#define BELIEVES(i) (owner == i) /* it had the session last, and heard of the command */
#endif

/* May an act go on? */
#ifdef NO_CHECK
#define MARGIN(i) 1
#else
#ifdef NO_LATCH
#define MARGIN(i) (own[i] > 0)
#else
#define MARGIN(i) (own[i] > 0 && !lapsed[i])
#endif
#endif

/* What is in doubt is closed and never started again. */
#ifdef REPEAT
#define DOUBT 0
#else
#define DOUBT (started && startedIn < my)
#endif

/* The check before an act. I-11: it passes only while this node owns
   the session.
   Afterwards the process may still be paused before the act: that lands
   outside, and the next owner finds the started event. */
inline check() {
	d_step {
		if
		:: MARGIN(i) -> assert(holder == i && epoch == my); ok = 1
		:: else -> ok = 0
		fi
	}
}

/* An owner's append: ok says whether it was committed. I-11: never by a node
   whose session went to another. */
inline guard() {
	ok = READ(i) && HOLDS(i) && SAME(my);
	if
	:: ok -> assert((holder == i || holder == NOBODY) && epoch == my); holder = i; appended(i)
	:: else
	fi
}

inline forget() {
	d_step {
		works[i] = 0; lapsed[i] = 0; behind[i] = 0;
		my = 0; call = 0; ok = 0; claim = 0; flying = 0
	}
}

proctype Node(byte i) {
	byte my = 0, call = 0, k = 0;
	bool ok = 0, claim = 0, flying = 0, refused = 0;
	{
endidle:
	do
	:: atomic { /* Take: the store hands it out, or gives again what this node holds */
		TAKES(i) && want && (holder == NOBODY || holder != i && !ALIVE(holder)) -> holder = i; refused = 0
	   };
	   if
	   :: goto drive
	   :: atomic { faults > 0 -> faults-- } /* the answer is lost: it holds, and does not know */
	   fi
#ifndef NO_MINE
	:: TAKES(i) && want && holder == i -> goto drive
#endif
	:: TAKES(i) && closed < asked && BELIEVES(i) && !refused -> goto drive /* without asking: the store decides */
	:: d_step { /* a clean stop: nothing is in work; the lease is given back */
		up[i] && faults > 0 && TAKERS > TAKES(i) -> faults--; own[i] = 0; beat[i] = 0; lease[i] = 0;
		if :: holder == i -> holder = NOBODY :: else fi;
		up[i] = 0
	   }
	od;

drive: /* load the session, in a lease that is good */
	atomic {
		if
		:: own[i] == 0 -> goto stop
		:: else
		fi;
		works[i] = 1; lapsed[i] = 0; behind[i] = 0;
		my = epoch; claim = (owner != i || started); flying = 0
	};

next: /* what came meanwhile is folded; then the state says what is next */
	atomic {
#ifndef NO_CATCHUP
		if
		:: behind[i] && epoch != my -> goto stop /* lost, silently */
		:: else
		fi;
#else
		my = epoch;
#endif
		behind[i] = 0;
		if
		:: claim -> goto claiming
		:: !claim && flying -> goto outcome
		:: !claim && !flying && DOUBT -> goto doubt
#ifdef REPEAT
		:: !claim && !flying && started && startedIn < my -> call = closed; startedIn = my; goto act
#endif
		:: !claim && !flying && started && startedIn == my -> call = closed; goto act
		:: !claim && !flying && !started && closed < asked -> call = closed; goto start
		:: !claim && !flying && !started && closed == asked -> goto rest
		:: !claim && !flying && faults > 0 && TAKERS > TAKES(i) -> /* a drain: it is given away between two acts */
			faults--; yield[i] = 1; yieldFits[i] = 1;
#ifndef YIELD_AND_GO_ON
			drains[i] = 1;
#endif
			goto stop
		fi
	};

claiming:
	atomic {
		if
#ifdef BLIND_CLAIM
		:: MAY_CLAIM(i) ->
			epoch = my + 1;
#else
		:: behind[i] -> goto drive
		:: !behind[i] && MAY_CLAIM(i) ->
			epoch++;
#endif
			assert(epoch > highest); highest = epoch; /* I-15 */
			owner = i; my = epoch; claim = 0; holder = i; appended(i); goto next
		:: else -> refused = 1; goto stop /* HeldError */
		fi
	};

start:
#ifndef NO_STARTED
	atomic {
		guard();
		if
		:: ok -> assert(!started); started = 1; startedIn = my
		:: else
		fi
	};
	if
	:: ok -> goto act
	:: atomic { ok && faults > 0 -> faults-- }; goto next /* committed, and the answer is lost */
	:: !ok -> goto again
	fi;
#endif

act:
	check();
	if :: !ok -> goto stop :: else fi;
	d_step { effects[call]++; assert(effects[call] <= 1) }; /* I-13 */
	flying = 1;
	if /* a delta of its progress */
	:: check(); if :: !ok -> goto stop :: else fi
	:: skip
	fi;

outcome:
	atomic {
		guard();
		if
#ifdef NO_STARTED
		:: ok -> closed++
#else
		:: ok && started && closed == call -> started = 0; startedIn = 0; closed++
#endif
		:: else
		fi;
		if :: ok -> flying = 0; goto next :: else fi
	};
	goto again;

doubt: /* the sweep: what an owner before this one had started */
	check();
	if :: !ok -> goto stop :: else fi;
	atomic {
		guard();
		if
		:: ok -> started = 0; startedIn = 0; closed++; goto next
		:: else
		fi
	};
	goto again;

rest: /* the run's end says that the stream wants nothing more */
	atomic {
		guard();
		if
		:: ok -> want = 0; holder = NOBODY; goto stop
		:: else
		fi
	};

again:
	if
	:: behind[i] -> goto next /* the head has moved: fold, and make the append anew */
	:: else -> refused = 1; goto stop /* fenced, silently; from now on it asks first */
	fi;

stop: /* nothing is left of the drive */
	forget();
	goto endidle
	} unless { !up[i] -> forget() }
}

/* The heartbeat, beside the work. */
proctype Beat(byte i) {
	{
endbeat:
	do
	:: atomic {
		own[i] < TTL -> beat[i] = TTL; /* the node's clock starts before the beat is sent */
#ifdef SLOW
	   };
	   atomic { /* the beat may take its time, too, not only its answer */
#endif
		lease[i] = TTL
	   };
	   d_step {
#ifdef LATE_CLOCK
		own[i] = TTL
#else
		own[i] = beat[i]
#endif
		; beat[i] = 0
	   }
	od
	} unless { !up[i] }
}

/* What happens to a node from outside. Its yields arrive when they arrive, also
   when it is gone; and it may die without a word, as long as one lives on. */
proctype Fate(byte i) {
endfate:
	do
	:: atomic {
		up[i] && faults > 0 && TAKERS > TAKES(i) ->
		faults--; up[i] = 0; own[i] = 0; beat[i] = 0
	   }
	:: atomic {
		yield[i] ->
		if
#ifdef YIELD_AT_HEAD
		:: holder == i && yieldFits[i] -> holder = NOBODY
#else
		:: holder == i -> holder = NOBODY
#endif
		:: else
		fi;
		yield[i] = 0; yieldFits[i] = 0
	   }
	od
}

/* Time passes at one rate for all. A lease that ends under a living node is a fault. */
proctype Clock() {
	byte k = 0;
endclock:
	do
	:: atomic {
		SUM(RUNS) && SUM(ENDS) <= faults -> faults = faults - SUM(ENDS);
		do
		:: k < NODES ->
			if :: lease[k] > 0 -> lease[k]-- :: else fi;
			if :: own[k] > 0 -> own[k]-- :: else fi;
			if :: beat[k] > 0 -> beat[k]-- :: else fi;
			if :: own[k] == 0 && works[k] -> lapsed[k] = 1 :: else fi;
			k++
		:: else -> k = 0; break
		od
	   }
	od
}

/* The client's commands: they move the head, and wake the stream. */
proctype Client() {
	byte k = 0;
	do
	:: atomic { asked < CALLS -> asked++; want = 1; appended(NOBODY) }
	:: asked == CALLS -> break
	od
}

init {
	byte i = 0;
	atomic {
		do
		:: i < NODES -> run Node(i); run Beat(i); run Fate(i); i++
		:: else -> i = 0; break
		od;
		run Clock(); run Client()
	}
}

#ifdef PROGRESS
/* Whatever happened, as long as one node lives: in the end every call is closed
   and the stream is at rest. */
ltl progress { <> DONE }
#endif
