/* Flow control of one connection: how many steps are on their way, and how many more may be. */
#ifndef SC_CREDIT_WINDOW_H
#define SC_CREDIT_WINDOW_H

#include <stddef.h>
#include <stdint.h>

#include "error.h"

typedef struct {
    int64_t end; /* received when the server's mark reaches this */
    int64_t num_steps;
} sc_on_the_way;

/* Steps that the server has not acknowledged, at most the credit: `room` for so many more is left. */
typedef struct {
    int64_t sequence;
    int64_t room;
    sc_on_the_way *ring;
    size_t capacity;
    size_t first;
    size_t num;
} sc_credit_window;

sc_credit_window sc_credit_window_begin(uint32_t credit);
void sc_credit_window_free(sc_credit_window *window);

/* Steps have been sent that are complete with the last of these messages. */
int sc_credit_window_sent(sc_credit_window *window, uint32_t num_steps, int64_t num_messages, sc_error *error);

/* The server has received all messages with a smaller sequence than `mark`. */
void sc_credit_window_received(sc_credit_window *window, int64_t mark);

#endif
