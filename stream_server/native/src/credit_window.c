#include "credit_window.h"

#include <stdlib.h>

sc_credit_window sc_credit_window_begin(uint32_t credit) {
    return (sc_credit_window){.room = credit};
}

void sc_credit_window_free(sc_credit_window *window) {
    free(window->ring);
    window->ring = NULL;
}

static int grow(sc_credit_window *window, sc_error *error) {
    size_t capacity = window->capacity == 0 ? 16 : 2 * window->capacity;
    sc_on_the_way *ring = calloc(capacity, sizeof *ring);
    if (ring == NULL)
        return sc_no_memory(error);
    for (size_t i = 0; i < window->num; ++i)
        ring[i] = window->ring[(window->first + i) % window->capacity];
    free(window->ring);
    window->ring = ring;
    window->capacity = capacity;
    window->first = 0;
    return STREAM_OK;
}

int sc_credit_window_sent(sc_credit_window *window, uint32_t num_steps, int64_t num_messages, sc_error *error) {
    if (window->num == window->capacity) {
        int code = grow(window, error);
        if (code != STREAM_OK)
            return code;
    }
    window->sequence += num_messages;
    window->room -= num_steps;
    window->ring[(window->first + window->num) % window->capacity] = (sc_on_the_way){window->sequence, num_steps};
    ++window->num;
    return STREAM_OK;
}

void sc_credit_window_received(sc_credit_window *window, int64_t mark) {
    while (window->num > 0 && window->ring[window->first].end <= mark) {
        window->room += window->ring[window->first].num_steps;
        window->first = (window->first + 1) % window->capacity;
        --window->num;
    }
}
