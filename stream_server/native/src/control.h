/* The conversation with rank 0's control socket: one question, repeated until it is answered. */
#ifndef SC_CONTROL_H
#define SC_CONTROL_H

#include "watch.h"

/* Who asks, and how long the server may say nothing. */
typedef struct {
    void *context;
    sc_watch *watch;
    const char *who;
    double timeout_s;
} sc_asker;

/* Ask what may safely be asked twice. A server that is BUSY is asked again later; one that is started again meanwhile
 * is asked at its new place. STREAM_ERROR_UNREACHABLE: no word came in time. On an error there is no answer to free. */
int sc_ask(const sc_asker *asker, const sc_message *question, sc_reply *answer, sc_error *error);

/* The text of an answer that is none; for messages. */
const char *sc_answer_text(const sc_reply *answer);

#endif
