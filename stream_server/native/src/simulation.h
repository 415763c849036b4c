/* A simulation: one run of the solver, as the study sees it. */
#ifndef SC_SIMULATION_H
#define SC_SIMULATION_H

#include <stdatomic.h>
#include <sys/types.h>

#include "delivery.h"
#include "greeting.h"

struct stream_simulation {
    sc_error error; /* the last one; once it has failed, the one that every call gives */
    bool has_failed;
    bool is_alone;       /* there is no study */
    bool has_ended;      /* the study has ended */
    bool none_is_left;   /* of the simulations for this worker */
    const char *next;    /* the list of what this worker computes after its first one, or NULL */
    int num_followed;    /* lines of it */
    bool is_invalidated; /* what was sent is withdrawn */
    bool has_sent;       /* a step */
    bool has_refused;    /* a step, because of a mistake */
    sc_error mistake;    /* the first one in what was to be sent */
    atomic_bool is_in_call; /* some thread is */
    atomic_bool is_shared;  /* another one came meanwhile */
    pid_t process;       /* the one that took part; ZeroMQ does not survive a fork */
    int64_t id;
    uint32_t attempt; /* without a delivery */
    sc_parameters parameters; /* those known without a welcome */
    char *stop_reason;        /* what was said instead of a welcome, or NULL */
    double timeout_s;
    bool has_watch;
    sc_watch watch;
    sc_greeting greeting;
    void *context;
    sc_pool *pool;
    sc_delivery *delivery; /* NULL: alone, or too late */
};

/* Begin a call, and end it: no other thread may be in one, or the simulation fails. Around all functions that change it,
 * by `SC_IN_ONE_THREAD`, which returns what `call` does. */
int sc_simulation_enter(stream_simulation *simulation);
void sc_simulation_leave(stream_simulation *simulation);
extern const char *const sc_shared_text;
#define SC_IN_ONE_THREAD(simulation, call)                                              \
    int result = sc_simulation_enter(simulation);                                       \
    if (result == STREAM_OK) {                                                          \
        result = (call);                                                                \
        sc_simulation_leave(simulation);                                                \
    }                                                                                   \
    return result

/* The result of the next call, before it does anything: STREAM_OK, or STREAM_STOP if nothing more is wanted, or the
 * failure; STREAM_ERROR_ARGUMENT without a simulation. */
int sc_simulation_state(stream_simulation *simulation);

/* Whether this process is a child of the one that took part; the simulation has this error then. */
bool sc_simulation_is_inherited(stream_simulation *simulation);

/* Note an error, from which only a mistake in a call lets the simulation recover; gives its code. */
int sc_simulation_fail(stream_simulation *simulation, const sc_error *error);
/* Note an error of this call alone. */
int sc_simulation_mistake(stream_simulation *simulation, const sc_error *error);
/* Note that something that must be there is NULL. */
int sc_simulation_null(stream_simulation *simulation, const char *what);

/* Say hello, and have what the study says. STREAM_STOP: it wants nothing. */
int sc_simulation_take_part(stream_simulation *simulation, sc_error *error);

/* Wait until all that was sent has arrived. STREAM_STOP: the study has ended before. STREAM_ERROR_ARGUMENT: steps were
 * sent, but all of them wrongly. */
int sc_simulation_complete(stream_simulation *simulation);

void sc_simulation_free(stream_simulation *simulation);

/* The error of this thread's calls without a simulation. */
sc_error *sc_thread_error(void);

#endif
