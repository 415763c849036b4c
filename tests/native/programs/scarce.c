/* Has one conversation after the other, in each of which another allocation fails, until there is none left to fail.
 *
 *     scarce CONNECTION
 *
 * In the middle of each the connection file tells of a new start of the server. Prints how many failed. To be linked
 * with --wrap for each function below; ZeroMQ's own memory is not scarce.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "stream_client.h"

enum { NUM_STEPS = 12, MAX_FILE_BYTES = 4096 };

/* This allocation fails, counted from 1; 0: none does. */
static long fails_at;
static long num_allocations;

void *__real_malloc(size_t size);
void *__real_calloc(size_t num, size_t size);
void *__real_realloc(void *memory, size_t size);
char *__real_strdup(const char *text);
int __real_posix_memalign(void **memory, size_t alignment, size_t size);

static int fails(void) {
    return ++num_allocations == fails_at;
}

void *__wrap_malloc(size_t size) {
    return fails() ? NULL : __real_malloc(size);
}

void *__wrap_calloc(size_t num, size_t size) {
    return fails() ? NULL : __real_calloc(num, size);
}

void *__wrap_realloc(void *memory, size_t size) {
    return fails() ? NULL : __real_realloc(memory, size);
}

char *__wrap_strdup(const char *text) {
    return fails() ? NULL : __real_strdup(text);
}

int __wrap_posix_memalign(void **memory, size_t alignment, size_t size) {
    return fails() ? ENOMEM : __real_posix_memalign(memory, alignment, size);
}

/* The same server at the same addresses, as a later incarnation. */
static int tell_of_a_new_start(const char *connection) {
    static const char key[] = "\"incarnation\": ";
    static char content[MAX_FILE_BYTES], next[MAX_FILE_BYTES];
    FILE *file = fopen(connection, "r");
    if (file == NULL)
        return 0;
    content[fread(content, 1, sizeof content - 1, file)] = '\0';
    fclose(file);
    char *number = strstr(content, key), *rest;
    snprintf(next, sizeof next, "%s.next", connection);
    if (number == NULL || (file = fopen(next, "w")) == NULL)
        return 0;
    number += strlen(key);
    long incarnation = strtol(number, &rest, 10) + 1;
    fprintf(file, "%.*s%ld%s", (int)(number - content), content, incarnation, rest);
    return fclose(file) == 0 && rename(next, connection) == 0;
}

static int send_steps(stream_simulation *simulation, const char *connection) {
    const int64_t shape[] = {4};
    const double values[4] = {1, 2, 3, 4};
    int code = stream_declare_field(simulation, "u", STREAM_FLOAT64, 1, shape, NULL, NULL);
    for (int64_t step = 0; step < NUM_STEPS && code == STREAM_OK; ++step) {
        if (step == NUM_STEPS / 2 && !tell_of_a_new_start(connection))
            return STREAM_ERROR_SYSTEM;
        code = stream_put(simulation, "u", values);
        if (code == STREAM_OK)
            code = stream_send(simulation, step);
    }
    return code;
}

static int converse(const char *connection) {
    stream_simulation *simulation;
    stream_options options = STREAM_OPTIONS_DEFAULT;
    const char *names[] = {"viscosity"};
    const double values[] = {0.5};
    options.connection = connection;
    options.num_parameters = 1;
    options.parameter_names = names;
    options.parameter_values = values;
    int code = stream_connect_with(&simulation, 0, 1, &options);
    if (code != STREAM_OK)
        return code;
    code = send_steps(simulation, connection);
    if (code == STREAM_OK)
        return stream_finish(&simulation);
    stream_abandon(&simulation);
    return code;
}

int main(int num_arguments, char *arguments[]) {
    long num_failed = 0;
    if (num_arguments < 2)
        return 2;
    do {
        num_allocations = 0;
        ++fails_at;
        int code = converse(arguments[1]);
        if (code != STREAM_OK && code != STREAM_ERROR_MEMORY) {
            printf("allocation %ld failed, and gave %d: %s\n", fails_at, code, stream_error(NULL));
            return 1;
        }
        num_failed += code == STREAM_ERROR_MEMORY;
    } while (num_allocations >= fails_at);
    printf("%ld\n", num_failed);
    return 0;
}
