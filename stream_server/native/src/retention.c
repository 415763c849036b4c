#include "retention.h"

#include <stdlib.h>

void sc_retention_begin(sc_retention *retention, const sc_layout *layout, int64_t window_bytes) {
    *retention = (sc_retention){.layout = layout, .window_bytes = (size_t)window_bytes};
}

size_t sc_retention_step_bytes(const sc_retention *retention, const sc_steps *steps) {
    return (SC_ENTRY_BYTES + steps->num * sc_steps_step_bytes(steps, retention->layout)) / steps->num;
}

static void drop(sc_backlog *backlog) {
    sc_sent *sent = backlog->first;
    backlog->first = sent->next;
    if (sent->next == NULL)
        backlog->last = NULL;
    backlog->retention->num_bytes -= sent->num_bytes;
    sc_steps_release(&sent->steps);
    free(sent);
}

void sc_retention_free_backlogs(sc_retention *retention) {
    while (retention->backlogs != NULL) {
        sc_backlog *backlog = retention->backlogs;
        retention->backlogs = backlog->next;
        while (backlog->first != NULL)
            drop(backlog);
        free(backlog);
    }
}

void sc_retention_free(sc_retention *retention) {
    sc_retention_free_backlogs(retention);
    sc_retention_forget_all(retention);
    free(retention->unsent);
    retention->unsent = NULL;
}

sc_backlog *sc_retention_backlog(sc_retention *retention) {
    sc_backlog *backlog = calloc(1, sizeof *backlog);
    if (backlog != NULL) {
        backlog->retention = retention;
        backlog->next = retention->backlogs;
        retention->backlogs = backlog;
    }
    return backlog;
}

/* The backlog whose oldest message is the oldest of all that were received, or NULL. */
static sc_backlog *oldest_received(const sc_retention *retention) {
    sc_backlog *oldest = NULL;
    for (sc_backlog *it = retention->backlogs; it != NULL; it = it->next)
        if (it->first != NULL && it->first->end <= it->received &&
            (oldest == NULL || it->first->age < oldest->first->age))
            oldest = it;
    return oldest;
}

/* Let the oldest ones go until the window is kept, or none may go. */
static void make_room(sc_retention *retention) {
    while (retention->num_bytes > retention->window_bytes) {
        sc_backlog *oldest = oldest_received(retention);
        if (oldest != NULL)
            drop(oldest);
        else if (retention->unsent_may_go && sc_retention_first(retention) != NULL)
            sc_retention_forget_first(retention);
        else
            return;
    }
}

int sc_backlog_add(sc_backlog *backlog, int64_t end, sc_steps *steps, sc_error *error) {
    sc_retention *retention = backlog->retention;
    sc_sent *sent = malloc(sizeof *sent);
    if (sent == NULL) {
        sc_steps_release(steps);
        return sc_no_memory(error);
    }
    size_t num_bytes = steps->num * sc_retention_step_bytes(retention, steps);
    *sent = (sc_sent){.age = retention->next_age++, .end = end, .num_bytes = num_bytes, .steps = *steps};
    steps->buffer = NULL;
    if (backlog->last == NULL)
        backlog->first = sent;
    else
        backlog->last->next = sent;
    backlog->last = sent;
    retention->num_bytes += num_bytes;
    make_room(retention);
    return STREAM_OK;
}

void sc_backlog_durable(sc_backlog *backlog, int64_t mark) {
    while (backlog->first != NULL && backlog->first->end <= mark)
        drop(backlog);
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
