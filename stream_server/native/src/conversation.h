/* The conversation of one client rank with the study, over all starts of the server.
 *
 * Why: docs/decisions/0022-native-client.md */
#ifndef SC_CONVERSATION_H
#define SC_CONVERSATION_H

#include "session.h"

/* Sends steps to the server, and again to one that was started again and does not know them.
 *
 * Room on the server may depend on the other ranks of a parallel simulation. One of them may have sent into a connection
 * that was lost at that moment: it does not know yet, and perhaps waits for this rank to go on. So a step that has
 * waited for SC_RELEASE_S is kept to be sent later, as long as no more of them (num_released) are kept than the credit.
 *
 * `hello` is said to each new server; `welcome` is what the first one answered, or a later one (`own_welcome`). */
typedef struct {
    sc_client client;
    const sc_hello *hello;
    const sc_welcome *welcome;
    sc_welcome own_welcome;
    uint32_t incarnation;
    sc_entered entered;
    bool has_session;
    sc_session session;
    bool has_sent; /* the connection file is looked at between messages, not between the steps of one */
    int64_t num_released;
    bool has_stopped;
    char *stop_reason; /* NULL: nobody told */
} sc_conversation;

/* `client` is without layout and retention; hello, welcome and blocks must outlive the conversation. It begins with the
 * first step, or with the end if there is none. */
void sc_conversation_begin(sc_conversation *conversation, const sc_client *client, const sc_hello *hello,
                           const sc_welcome *welcome);
void sc_conversation_free(sc_conversation *conversation);

/* Send a step, now or together with the next ones; blocks while there is no credit, or for SC_RELEASE_S. Errors: those of a session, and
 * STREAM_ERROR_STEPS_LOST if a new server misses a step that is retained no longer. */
int sc_conversation_send(sc_conversation *conversation, int64_t index, uint64_t present, const sc_slice arrays[],
                         sc_error *error);
/* How long a step may wait for room on this connection. */
double sc_conversation_longest_wait_s(const sc_conversation *conversation, const sc_data_connection *connection);
/* Wait until every step is settled on the server. */
int sc_conversation_finish(sc_conversation *conversation, sc_error *error);

/* Go on without the server: `keep` what would be sent, until it may resume and then sends or finishes. */
int sc_conversation_interrupt(sc_conversation *conversation, sc_error *error);
/* Keep a step while interrupted; the oldest ones go when there is no room. */
int sc_conversation_keep(sc_conversation *conversation, int64_t index, uint64_t present, const sc_slice arrays[],
                         sc_error *error);
/* Whether the server was started again since it was spoken to. */
bool sc_conversation_may_resume(sc_conversation *conversation, bool look_now);

/* Leave without a word. */
void sc_conversation_close(sc_conversation *conversation);
/* Leave, but let what was sent go out for a moment. */
void sc_conversation_abandon(sc_conversation *conversation);

#endif
