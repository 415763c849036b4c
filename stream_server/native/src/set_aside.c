/* The steps of connections that are gone. */
#include <stdlib.h>

#include "retention.h"

static size_t num_kept(const sc_retention *retention) {
    size_t num = retention->end_unsent - retention->first_unsent;
    for (const sc_retained *retained = retention->of_connections; retained != NULL; retained = retained->next)
        for (const sc_sent *sent = retained->first; sent != NULL; sent = sent->next)
            num += sent->steps.num;
    return num;
}

/* A step that is kept, and how many were found before it. */
typedef struct {
    sc_unsent unsent;
    size_t found;
} sc_kept;

static int by_index(const void *left, const void *right) {
    const sc_kept *a = left, *b = right;
    if (a->unsent.index != b->unsent.index)
        return a->unsent.index < b->unsent.index ? -1 : 1;
    return a->found < b->found ? -1 : a->found > b->found;
}

/* The retained steps by index; of what was sent twice the first one comes first. None of it owns its buffer. */
static void collect(const sc_retention *retention, sc_kept *kept) {
    size_t num = 0;
    for (size_t i = retention->first_unsent; i < retention->end_unsent; ++i, ++num)
        kept[num] = (sc_kept){retention->unsent[i], num};
    for (const sc_retained *retained = retention->of_connections; retained != NULL; retained = retained->next)
        for (const sc_sent *sent = retained->first; sent != NULL; sent = sent->next)
            for (uint32_t row = 0; row < sent->steps.num; ++row, ++num) {
                int64_t index = sent->steps.index + row * sent->steps.stride;
                size_t num_bytes = sc_retention_step_bytes(retention, &sent->steps);
                kept[num] = (sc_kept){{index, num_bytes, row, sent->steps}, num};
            }
    qsort(kept, num, sizeof *kept, by_index);
}

/* The first of those with this index, or NULL. */
static const sc_kept *find(const sc_kept *kept, size_t num, int64_t index) {
    size_t low = 0, high = num;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (kept[middle].unsent.index < index)
            low = middle + 1;
        else
            high = middle;
    }
    return low < num && kept[low].unsent.index == index ? &kept[low] : NULL;
}

/* Replace the unsent steps by these, which own their buffers. */
static void replace(sc_retention *retention, sc_unsent *unsent, size_t num) {
    sc_retention_free_connections(retention);
    sc_retention_forget_all(retention);
    free(retention->unsent);
    retention->unsent = unsent;
    retention->unsent_capacity = retention->end_unsent = num;
    retention->first_unsent = 0;
    retention->num_bytes = 0;
    for (size_t i = 0; i < num; ++i)
        retention->num_bytes += unsent[i].num_bytes;
}

int sc_retention_set_aside(sc_retention *retention, const sc_entered *entered, sc_error *error) {
    size_t num = num_kept(retention);
    if (retention->has_lost)
        return sc_no_memory(error);
    if (num == 0) {
        sc_retention_free_connections(retention);
        return STREAM_OK;
    }
    sc_kept *kept = calloc(num, sizeof *kept);
    sc_unsent *unsent = calloc(num, sizeof *unsent);
    if (kept == NULL || unsent == NULL) {
        free(kept);
        free(unsent);
        return sc_no_memory(error);
    }
    collect(retention, kept);
    size_t num_unsent = 0;
    for (size_t i = 0; i < entered->num && num_unsent < num; ++i) {
        const sc_kept *found = find(kept, num, entered->order[i]);
        if (found == NULL)
            continue;
        unsent[num_unsent++] = found->unsent;
        sc_buffer_hold(found->unsent.steps.buffer);
    }
    free(kept);
    replace(retention, unsent, num_unsent);
    return STREAM_OK;
}
