/* One client rank's steps on their way to the study, whether its server is there or not. */
#ifndef SC_DELIVERY_H
#define SC_DELIVERY_H

#include "conversation.h"
#include "fields.h"

/* Checks and sends the user's arrays, and knows what to do while the server is away.
 *
 * The server is away when it says nothing for timeout_s while it is waited for; what then happens is the study's to say
 * (if_server_away). */
typedef struct {
    sc_client client;
    sc_hello hello;
    sc_welcome welcome; /* what the first server answered; see sc_delivery_welcome */
    sc_fields *fields;
    bool has_conversation;
    bool is_away;
    bool is_lost;
    sc_conversation conversation;
} sc_delivery;

/* Who takes part, and over what. The study and the parameters of `hello` must outlive the delivery. */
typedef struct {
    void *context;
    sc_pool *pool;
    sc_watch *watch;
    const sc_hello *hello;
    double timeout_s;
} sc_participant;

/* Takes over the welcome, if there is memory; NULL: there is none. */
sc_delivery *sc_delivery_new(const sc_participant *participant, sc_welcome *welcome);
void sc_delivery_free(sc_delivery *delivery);

/* The answer of the newest server. */
const sc_welcome *sc_delivery_welcome(const sc_delivery *delivery);

/* Send what was put as one step. */
int sc_delivery_send(sc_delivery *delivery, int64_t index, sc_error *error);
/* Wait until every step is settled on the server. */
int sc_delivery_finish(sc_delivery *delivery, sc_error *error);
/* Withdraw all that was sent, and leave. */
int sc_delivery_invalidate(sc_delivery *delivery, const char *reason, sc_error *error);

/* Leave unfinished, but let what was sent go out for a moment. */
void sc_delivery_abandon(sc_delivery *delivery);
/* Leave without a word. May be called at any time, and again. */
void sc_delivery_close(sc_delivery *delivery);

/* Whether the study has ended, and why: "" if nobody told. */
bool sc_delivery_has_stopped(const sc_delivery *delivery);
const char *sc_delivery_stop_reason(const sc_delivery *delivery);

#endif
