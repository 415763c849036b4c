#include "flow_control.h"

#include <stdlib.h>

sc_flow_control sc_flow_control_begin(uint32_t credit) {
    return (sc_flow_control){.room = credit};
}

void sc_flow_control_free(sc_flow_control *flow) {
    free(flow->ring);
    flow->ring = NULL;
}

static int grow(sc_flow_control *flow, sc_error *error) {
    size_t capacity = flow->capacity == 0 ? 16 : 2 * flow->capacity;
    sc_on_the_way *ring = calloc(capacity, sizeof *ring);
    if (ring == NULL)
        return sc_no_memory(error);
    for (size_t i = 0; i < flow->num; ++i)
        ring[i] = flow->ring[(flow->first + i) % flow->capacity];
    free(flow->ring);
    flow->ring = ring;
    flow->capacity = capacity;
    flow->first = 0;
    return STREAM_OK;
}

int sc_flow_control_sent(sc_flow_control *flow, uint32_t num_steps, int64_t num_messages, sc_error *error) {
    if (flow->num == flow->capacity) {
        int code = grow(flow, error);
        if (code != STREAM_OK)
            return code;
    }
    flow->sequence += num_messages;
    flow->room -= num_steps;
    flow->ring[(flow->first + flow->num) % flow->capacity] = (sc_on_the_way){flow->sequence, num_steps};
    ++flow->num;
    return STREAM_OK;
}

void sc_flow_control_received(sc_flow_control *flow, int64_t mark) {
    while (flow->num > 0 && flow->ring[flow->first].end <= mark) {
        flow->room += flow->ring[flow->first].num_steps;
        flow->first = (flow->first + 1) % flow->capacity;
        --flow->num;
    }
}
