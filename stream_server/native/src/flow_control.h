/* Flow control of one connection by credit. */
#ifndef SC_FLOW_CONTROL_H
#define SC_FLOW_CONTROL_H

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
} sc_flow_control;

sc_flow_control sc_flow_control_begin(uint32_t credit);
void sc_flow_control_free(sc_flow_control *flow);

/* Steps have been sent that are complete with the last of these messages. */
int sc_flow_control_sent(sc_flow_control *flow, uint32_t num_steps, int64_t num_messages, sc_error *error);

/* The server has received all messages with a smaller sequence than `mark`. */
void sc_flow_control_received(sc_flow_control *flow, int64_t mark);

#endif
