#include "pending.h"

bool sc_pending_fits(const sc_pending *pending, int64_t index, uint64_t present) {
    const sc_steps *steps = &pending->steps;
    return steps->num == 0 || (present == steps->present && index == steps->index + steps->num * steps->stride);
}

/* Make room for steps with these blocks: new, or left by the last ones. */
static int begin(sc_pending *pending, int64_t index, uint64_t present, sc_error *error) {
    sc_steps *steps = &pending->steps;
    if (steps->buffer == NULL || steps->present != present) {
        sc_steps_release(steps);
        int code = sc_steps_begin(steps, pending->pool, pending->layout, present, pending->capacity, error);
        if (code != STREAM_OK)
            return code;
    }
    steps->index = index;
    steps->stride = pending->stride;
    return STREAM_OK;
}

int sc_pending_add(sc_pending *pending, int64_t index, uint64_t present, const sc_slice arrays[], sc_error *error) {
    if (pending->steps.num == 0) {
        int code = begin(pending, index, present, error);
        if (code != STREAM_OK)
            return code;
    }
    sc_steps_add(&pending->steps, pending->layout, arrays);
    return STREAM_OK;
}

/* Whether so little of the buffer is unused that it may be kept as it is. */
static bool is_about_full(const sc_pending *pending) {
    return pending->capacity - pending->steps.num <= pending->capacity / 8;
}

int sc_pending_take(sc_pending *pending, sc_steps *steps, sc_error *error) {
    if (is_about_full(pending)) {
        *steps = pending->steps;
        pending->steps = (sc_steps){.num = 0};
        return STREAM_OK;
    }
    int code = sc_steps_fit(&pending->steps, steps, pending->pool, pending->layout, error);
    if (code == STREAM_OK)
        pending->steps.num = 0;
    return code;
}

void sc_pending_free(sc_pending *pending) {
    sc_steps_release(&pending->steps);
}
