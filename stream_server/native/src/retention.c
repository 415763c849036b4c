#include "retention.h"

#include <stdlib.h>

void sc_retention_begin(sc_retention *retention, const sc_layout *layout, int64_t max_bytes) {
    *retention = (sc_retention){.layout = layout, .max_bytes = (size_t)max_bytes};
}

size_t sc_retention_step_bytes(const sc_retention *retention, const sc_steps *steps) {
    return (SC_ENTRY_BYTES + steps->num * sc_steps_step_bytes(steps, retention->layout)) / steps->num;
}

static void drop(sc_retained *retained) {
    sc_sent *sent = retained->first;
    retained->first = sent->next;
    if (sent->next == NULL)
        retained->last = NULL;
    retained->retention->num_bytes -= sent->num_bytes;
    sc_steps_release(&sent->steps);
    free(sent);
}

void sc_retention_free_connections(sc_retention *retention) {
    while (retention->of_connections != NULL) {
        sc_retained *retained = retention->of_connections;
        retention->of_connections = retained->next;
        while (retained->first != NULL)
            drop(retained);
        free(retained);
    }
}

void sc_retention_free(sc_retention *retention) {
    sc_retention_free_connections(retention);
    sc_retention_forget_all(retention);
    free(retention->unsent);
    retention->unsent = NULL;
}

sc_retained *sc_retention_of_connection(sc_retention *retention) {
    sc_retained *retained = calloc(1, sizeof *retained);
    if (retained != NULL) {
        retained->retention = retention;
        retained->next = retention->of_connections;
        retention->of_connections = retained;
    }
    return retained;
}

/* The retained steps of the connection whose oldest message is the oldest of all that were received, or NULL. */
static sc_retained *oldest_received(const sc_retention *retention) {
    sc_retained *oldest = NULL;
    for (sc_retained *it = retention->of_connections; it != NULL; it = it->next)
        if (it->first != NULL && it->first->end <= it->received &&
            (oldest == NULL || it->first->age < oldest->first->age))
            oldest = it;
    return oldest;
}

/* Let the oldest ones go until all fits, or none may go. */
static void make_room(sc_retention *retention) {
    while (retention->num_bytes > retention->max_bytes) {
        sc_retained *oldest = oldest_received(retention);
        if (oldest != NULL)
            drop(oldest);
        else if (retention->unsent_may_go && sc_retention_first(retention) != NULL)
            sc_retention_forget_first(retention);
        else
            return;
    }
}

int sc_retained_add(sc_retained *retained, int64_t end, sc_steps *steps, sc_error *error) {
    sc_retention *retention = retained->retention;
    sc_sent *sent = malloc(sizeof *sent);
    if (sent == NULL) {
        sc_steps_release(steps);
        return sc_no_memory(error);
    }
    size_t num_bytes = steps->num * sc_retention_step_bytes(retention, steps);
    *sent = (sc_sent){.age = retention->next_age++, .end = end, .num_bytes = num_bytes, .steps = *steps};
    steps->buffer = NULL;
    if (retained->last == NULL)
        retained->first = sent;
    else
        retained->last->next = sent;
    retained->last = sent;
    retention->num_bytes += num_bytes;
    make_room(retention);
    return STREAM_OK;
}

void sc_retained_durable(sc_retained *retained, int64_t mark) {
    while (retained->first != NULL && retained->first->end <= mark)
        drop(retained);
}

static int grow_unsent(sc_retention *retention, sc_error *error) {
    size_t capacity = 2 * retention->unsent_capacity + 64;
    sc_unsent *unsent = realloc(retention->unsent, capacity * sizeof *unsent);
    if (unsent == NULL)
        return sc_no_memory(error);
    retention->unsent = unsent;
    retention->unsent_capacity = capacity;
    return STREAM_OK;
}

int sc_retention_keep(sc_retention *retention, sc_steps *steps, sc_error *error) {
    if (retention->first_unsent > retention->unsent_capacity / 2)
        sc_retention_close_up(retention);
    if (retention->end_unsent == retention->unsent_capacity && grow_unsent(retention, error) != STREAM_OK) {
        sc_steps_release(steps);
        return error->code;
    }
    size_t num_bytes = sc_retention_step_bytes(retention, steps);
    retention->unsent[retention->end_unsent++] = (sc_unsent){steps->index, num_bytes, 0, *steps};
    steps->buffer = NULL;
    retention->num_bytes += num_bytes;
    make_room(retention);
    return STREAM_OK;
}

sc_unsent *sc_retention_first(sc_retention *retention) {
    return retention->first_unsent < retention->end_unsent ? &retention->unsent[retention->first_unsent] : NULL;
}

void sc_retention_forget(sc_retention *retention, sc_unsent *unsent) {
    if (unsent->steps.buffer == NULL)
        return;
    sc_steps_release(&unsent->steps);
    retention->num_bytes -= unsent->num_bytes;
}

void sc_retention_forget_first(sc_retention *retention) {
    sc_retention_forget(retention, &retention->unsent[retention->first_unsent]);
    ++retention->first_unsent;
}

void sc_retention_close_up(sc_retention *retention) {
    size_t end = 0;
    for (size_t i = retention->first_unsent; i < retention->end_unsent; ++i)
        if (retention->unsent[i].steps.buffer != NULL)
            retention->unsent[end++] = retention->unsent[i];
    retention->first_unsent = 0;
    retention->end_unsent = end;
}

void sc_retention_forget_all(sc_retention *retention) {
    for (size_t i = retention->first_unsent; i < retention->end_unsent; ++i)
        sc_retention_forget(retention, &retention->unsent[i]);
    retention->first_unsent = retention->end_unsent = 0;
}
