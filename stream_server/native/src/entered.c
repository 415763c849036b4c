#include "entered.h"

#include <stdlib.h>

static bool grow(sc_entered *entered) {
    size_t capacity = entered->capacity == 0 ? 64 : 2 * entered->capacity;
    int64_t *order = realloc(entered->order, capacity * sizeof *order);
    if (order == NULL)
        return false;
    entered->order = order;
    entered->capacity = capacity;
    return true;
}

int sc_entered_add(sc_entered *entered, int64_t index) {
    if (entered->num == entered->capacity && !grow(entered))
        return -1;
    int is_new = sc_bits_add(&entered->bits, index);
    if (is_new == 1)
        entered->order[entered->num++] = index;
    return is_new;
}

void sc_entered_free(sc_entered *entered) {
    sc_bits_free(&entered->bits);
    free(entered->order);
    *entered = (sc_entered){.num = 0};
}
