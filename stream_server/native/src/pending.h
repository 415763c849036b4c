/* Small steps on their way to becoming one message. */
#ifndef SC_PENDING_H
#define SC_PENDING_H

#include "steps.h"

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

#endif
