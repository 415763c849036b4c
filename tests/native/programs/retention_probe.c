/* Drives the retention by lines on standard input; after each one it prints what is kept.
 *
 *     max BYTES | connection | sent NUMBER END INDEX NUM STRIDE | received NUMBER MARK | durable NUMBER MARK
 *     aside | keep INDEX | may_go FLAG | forget INDEX
 *
 * A step has eight bytes: a number that counts them. What is printed: the bytes, then "index:number" of the steps that
 * each connection has, then of those that none has, with ";" between.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "../../../stream_server/native/src/retention.h"

enum { MAX_CONNECTIONS = 16 };

static const sc_layout LAYOUT = {.num_blocks = 1, .block_bytes = {8}};
static sc_retention retention;
static sc_entered entered;
static sc_retained *of_connections[MAX_CONNECTIONS];
static int num_connections;
static int64_t counter;
static sc_pool *pool;

static sc_steps steps_of(int64_t index, int num, int64_t stride) {
    sc_steps steps;
    sc_error error;
    sc_steps_begin(&steps, pool, &LAYOUT, 1, (uint32_t)num, &error);
    steps.index = index;
    steps.stride = stride;
    for (int i = 0; i < num; ++i) {
        sc_slice arrays[] = {{(const uint8_t *)&counter, sizeof counter}};
        sc_steps_add(&steps, &LAYOUT, arrays);
        sc_entered_add(&entered, index + i * stride);
        ++counter;
    }
    return steps;
}

static void print_step(const sc_steps *steps, uint32_t row) {
    sc_slice arrays[SC_MAX_FIELDS];
    int64_t number;
    sc_steps_arrays(steps, &LAYOUT, row, arrays);
    memcpy(&number, arrays[0].bytes, sizeof number);
    printf(" %" PRId64 ":%" PRId64, steps->index + row * steps->stride, number);
}

static void print_all(void) {
    printf("%zu", retention.num_bytes);
    for (int i = 0; i < num_connections; ++i) {
        printf(" ;");
        for (const sc_sent *sent = of_connections[i]->first; sent != NULL; sent = sent->next)
            for (uint32_t row = 0; row < sent->steps.num; ++row)
                print_step(&sent->steps, row);
    }
    printf(" ;");
    for (size_t i = retention.first_unsent; i < retention.end_unsent; ++i)
        print_step(&retention.unsent[i].steps, retention.unsent[i].row);
    printf("\n");
    fflush(stdout);
}

static void forget(int64_t index) {
    for (size_t i = retention.first_unsent; i < retention.end_unsent; ++i)
        if (retention.unsent[i].index == index)
            sc_retention_forget(&retention, &retention.unsent[i]);
    sc_retention_close_up(&retention);
}

static void obey(const char *verb, const long long numbers[]) {
    sc_error error;
    if (strcmp(verb, "max") == 0) {
        sc_retention_begin(&retention, &LAYOUT, numbers[0]);
    } else if (strcmp(verb, "connection") == 0) {
        of_connections[num_connections++] = sc_retention_of_connection(&retention);
    } else if (strcmp(verb, "sent") == 0) {
        sc_steps steps = steps_of(numbers[2], (int)numbers[3], numbers[4]);
        sc_retained_add(of_connections[numbers[0]], numbers[1], &steps, &error);
    } else if (strcmp(verb, "received") == 0) {
        of_connections[numbers[0]]->received = numbers[1];
    } else if (strcmp(verb, "durable") == 0) {
        sc_retained_durable(of_connections[numbers[0]], numbers[1]);
    } else if (strcmp(verb, "aside") == 0) {
        sc_retention_set_aside(&retention, &entered, &error);
        num_connections = 0;
    } else if (strcmp(verb, "keep") == 0) {
        sc_steps steps = steps_of(numbers[0], 1, 1);
        sc_retention_keep(&retention, &steps, &error);
    } else if (strcmp(verb, "may_go") == 0) {
        retention.unsent_may_go = numbers[0] != 0;
    } else if (strcmp(verb, "forget") == 0) {
        forget(numbers[0]);
    }
}

int main(void) {
    char line[256], verb[16];
    pool = sc_pool_new();
    while (fgets(line, sizeof line, stdin) != NULL) {
        long long numbers[5] = {0};
        if (sscanf(line, "%15s %lld %lld %lld %lld %lld", verb, &numbers[0], &numbers[1], &numbers[2], &numbers[3],
                   &numbers[4]) < 1)
            continue;
        obey(verb, numbers);
        print_all();
    }
    sc_retention_free(&retention);
    sc_entered_free(&entered);
    sc_pool_close(pool);
    return 0;
}
