/* Steps as messages: small ones travel together, large ones in parts. */
#ifndef SC_STEP_MESSAGES_H
#define SC_STEP_MESSAGES_H

#include "steps.h"
#include "transport.h"

/* Neighbouring steps with the same fields, `stride` apart, copied side by side; steps.num of them are there. */
typedef struct {
    sc_pool *pool;
    const sc_layout *layout;
    uint32_t capacity; /* 0: steps do not wait for company */
    int64_t stride;
    sc_steps steps;
} sc_pending;

/* Whether this step continues the others. */
bool sc_pending_fits(const sc_pending *pending, int64_t index, uint64_t present);

/* Copy a step that fits. */
int sc_pending_add(sc_pending *pending, int64_t index, uint64_t present, const sc_slice arrays[], sc_error *error);

/* Hand over all steps; none is pending any more. */
int sc_pending_take(sc_pending *pending, sc_steps *steps, sc_error *error);
void sc_pending_free(sc_pending *pending);

/* Send steps. `data` is the first message's header, as far as it is known before: simulation, attempt, incarnation,
 * sequence, and in_segment if the server reads what lies there. *num_messages becomes the number of messages that it
 * took. */
int sc_send_steps(sc_dealer *dealer, const sc_layout *layout, const sc_steps *steps, sc_data data,
                  int64_t *num_messages, sc_error *error);
/* Send one step, block by block, and each block in pieces; data->sequence becomes that of the next message. */
int sc_send_parts(sc_dealer *dealer, const sc_layout *layout, const sc_steps *steps, sc_data *data, sc_error *error);

#endif
