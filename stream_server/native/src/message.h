/* Steps as messages on one connection: together in one, or a large one in parts. */
#ifndef SC_MESSAGE_H
#define SC_MESSAGE_H

#include "steps.h"
#include "transport.h"

/* The first message's header, as far as it is known before: simulation, attempt, epoch and sequence. The number of
 * messages that it took is in *num_messages. */
int sc_send_steps(sc_dealer *dealer, const sc_layout *layout, const sc_steps *steps, sc_data data,
                  int64_t *num_messages, sc_error *error);

#endif
