/* The steps of one client rank that are not durable yet, kept so that they can be sent again. No sockets, no clock. */
#ifndef SC_RETENTION_H
#define SC_RETENTION_H

#include "bits.h"
#include "steps.h"

/* The memory that a message takes beside its bytes in the Python client, so that all clients keep the same steps. */
#define SC_ENTRY_BYTES 1500

typedef struct sc_retention sc_retention;

/* Steps that were sent: the server has them when its mark reaches `end`. What has a lower `age` was sent before. */
typedef struct sc_sent {
    struct sc_sent *next;
    int64_t age;
    int64_t end;
    size_t num_bytes;
    sc_steps steps;
} sc_sent;

/* The steps that were sent over one connection and are not durable yet, oldest first. `received` is the mark up to
 * which the server has them. */
typedef struct sc_retained {
    struct sc_retained *next;
    sc_retention *retention;
    int64_t received;
    sc_sent *first;
    sc_sent *last;
} sc_retained;

/* One step that no connection has: row `row` of `steps`. */
typedef struct {
    int64_t index;
    size_t num_bytes;
    uint32_t row;
    sc_steps steps;
} sc_unsent;

/* Keeps steps until they are durable, if they fit into max_bytes; else the oldest ones go first.
 *
 * What the server has not received is kept at any price, for credit bounds it; unless `unsent_may_go`, since nobody may
 * ever come for it. `unsent` are the steps that no connection has, in the order in which they are to be sent, from
 * first_unsent to end_unsent. has_lost: for lack of memory it does not keep all that it should. */
struct sc_retention {
    const sc_layout *layout;
    size_t max_bytes;
    size_t num_bytes;
    bool unsent_may_go;
    bool has_lost;
    int64_t next_age;
    sc_retained *of_connections;
    sc_unsent *unsent;
    size_t first_unsent;
    size_t end_unsent;
    size_t unsent_capacity;
};

void sc_retention_begin(sc_retention *retention, const sc_layout *layout, int64_t max_bytes);
void sc_retention_free(sc_retention *retention);

/* The retained steps of a new connection; they live until sc_retention_set_aside. NULL: no memory. */
sc_retained *sc_retention_of_connection(sc_retention *retention);

/* Retain steps that have been sent, and are complete with the messages below `end`. Takes over the steps, also on an
 * error. */
int sc_retained_add(sc_retained *retained, int64_t end, sc_steps *steps, sc_error *error);
/* All messages with a smaller sequence than `mark` are in a checkpoint: they are kept no longer. */
void sc_retained_durable(sc_retained *retained, int64_t mark);

/* The connections are gone, and what they have is kept no longer. */
void sc_retention_free_connections(sc_retention *retention);
/* The connections are gone: all that they have is unsent again, in the order of `entered`, which has at least those
 * steps. */
int sc_retention_set_aside(sc_retention *retention, const sc_entered *entered, sc_error *error);

/* The memory that one of these steps takes. */
size_t sc_retention_step_bytes(const sc_retention *retention, const sc_steps *steps);

/* Retain another unsent step, the last in the order. Takes over the steps, also on an error. */
int sc_retention_keep(sc_retention *retention, sc_steps *steps, sc_error *error);
/* The first unsent step, or NULL. */
sc_unsent *sc_retention_first(sc_retention *retention);
/* The first unsent step is kept no longer. */
void sc_retention_forget_first(sc_retention *retention);
/* An unsent step is kept no longer. To be called in the order of the steps, and followed by sc_retention_close_up. */
void sc_retention_forget(sc_retention *retention, sc_unsent *unsent);
void sc_retention_close_up(sc_retention *retention);
void sc_retention_forget_all(sc_retention *retention);

#endif
