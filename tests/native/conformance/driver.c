/* Drives the C client by a script on standard input, one result for each line: see script.py. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "stream_client.h"

enum { MAX_WORDS = 32, MAX_DECLARED = 64, MAX_LINE = 4096 };

typedef struct {
    int64_t at[STREAM_MAX_DIMENSIONS];
    int num; /* -1: absent */
} extents;

typedef struct {
    stream_simulation *simulation;
    char declared[MAX_DECLARED][64];
    int num_declared;
    char failed_put[2048];
} driver;

static const struct {
    const char *name;
    stream_dtype dtype;
    size_t size;
} DTYPES[] = {
    {"bool", STREAM_BOOL, 1},         {"int8", STREAM_INT8, 1},         {"int16", STREAM_INT16, 2},
    {"int32", STREAM_INT32, 4},       {"int64", STREAM_INT64, 8},       {"uint8", STREAM_UINT8, 1},
    {"uint16", STREAM_UINT16, 2},     {"uint32", STREAM_UINT32, 4},     {"uint64", STREAM_UINT64, 8},
    {"float16", STREAM_FLOAT16, 2},   {"float32", STREAM_FLOAT32, 4},   {"float64", STREAM_FLOAT64, 8},
    {"complex64", STREAM_COMPLEX64, 8}, {"complex128", STREAM_COMPLEX128, 16},
};

static const char *code_name(int code) {
    static const char *const names[] = {"", "ARGUMENT", "CONNECTION_FILE", "REFUSED", "STEPS_LOST", "UNREACHABLE",
                                        "MEMORY", "SYSTEM"};
    return code < 0 && code >= -7 ? names[-code] : "UNKNOWN";
}

static void print_result(int code, const char *error, const char *values) {
    if (code == STREAM_OK) printf("ok%s%s\n", *values ? " " : "", values);
    else if (code == STREAM_STOP) printf("stop\n");
    else printf("error %s: %s\n", code_name(code), error);
}

static int dtype_number(const char *name) {
    for (int i = 0; i < (int)(sizeof DTYPES / sizeof *DTYPES); ++i)
        if (strcmp(DTYPES[i].name, name) == 0) return i;
    return -1;
}

static extents parse_extents(const char *word) {
    extents parsed = {{0}, 0};
    if (strcmp(word, "-") == 0) parsed.num = -1;
    if (strcmp(word, "-") == 0 || strcmp(word, ".") == 0) return parsed;
    for (char *end; parsed.num < STREAM_MAX_DIMENSIONS; word = end + 1) {
        parsed.at[parsed.num++] = strtoll(word, &end, 10);
        if (*end != ',') break;
    }
    return parsed;
}

static void write_value(char *at, stream_dtype dtype, int64_t seed, int64_t i) {
    int64_t positive = (7 * seed + 3 * i) % 61, value = positive - 20;
    double real = (double)value / 3.0;
#define WRITE(type, expression) \
    do { \
        type it = (type)(expression); \
        memcpy(at, &it, sizeof it); \
    } while (0)
    switch (dtype) {
    case STREAM_BOOL: WRITE(uint8_t, positive % 2); break;
    case STREAM_INT8: WRITE(int8_t, value); break;
    case STREAM_INT16: WRITE(int16_t, value * 101); break;
    case STREAM_INT32: WRITE(int32_t, value * 1000003); break;
    case STREAM_INT64: WRITE(int64_t, value * 1000000000039); break;
    case STREAM_UINT8: WRITE(uint8_t, positive); break;
    case STREAM_UINT16: WRITE(uint16_t, positive * 101); break;
    case STREAM_UINT32: WRITE(uint32_t, positive * 1000003); break;
    case STREAM_UINT64: WRITE(uint64_t, positive * 1000000000039); break;
    case STREAM_FLOAT16: WRITE(_Float16, real); break;
    case STREAM_FLOAT32: WRITE(float, real); break;
    case STREAM_FLOAT64: WRITE(double, real); break;
    case STREAM_COMPLEX64: {
        float pair[2] = {(float)real, (float)(value - 7)};
        memcpy(at, pair, sizeof pair);
        break;
    }
    case STREAM_COMPLEX128: {
        double pair[2] = {real, (double)(value - 7)};
        memcpy(at, pair, sizeof pair);
        break;
    }
    case STREAM_AS_PUT: break;
    }
}

typedef struct {
    char *memory;
    char *first;
    int64_t strides[STREAM_MAX_DIMENSIONS];
    int is_contiguous;
} block;

/* A block with its values, inside an array that is laid out as `layout` says. NULL memory: there is none. */
static block make_block(int number, extents count, int64_t seed, const char *layout) {
    int is_ghost = strcmp(layout, "ghost") == 0, is_reversed = strcmp(layout, "reversed") == 0,
        is_spread = strcmp(layout, "spread") == 0;
    int64_t step = is_reversed ? -1 : is_spread ? 2 : 1, size = (int64_t)DTYPES[number].size;
    int64_t num = 1, room = 1, start = 0, strides[STREAM_MAX_DIMENSIONS];
    for (int d = count.num - 1; d >= 0; --d) {
        int64_t begin = is_ghost ? 1 : is_reversed && count.at[d] > 0 ? count.at[d] - 1 : 0;
        start += begin * room;
        strides[d] = step * room;
        room *= is_ghost ? count.at[d] + 2 : is_spread ? 2 * count.at[d] : count.at[d];
        num *= count.at[d];
    }
    block it = {.memory = malloc((size_t)(room * size) + 1), .is_contiguous = step == 1 && !is_ghost};
    if (!it.memory) return it;
    memset(it.memory, 0x2a, (size_t)(room * size) + 1);
    it.first = it.memory + start * size;
    memcpy(it.strides, strides, sizeof strides[0] * (size_t)count.num);
    for (int64_t i = 0; i < num; ++i) {
        int64_t rest = i, at = 0;
        for (int d = count.num - 1; d >= 0; --d) {
            at += rest % count.at[d] * strides[d];
            rest /= count.at[d];
        }
        write_value(it.first + at * size, DTYPES[number].dtype, seed, i);
    }
    return it;
}

static int is_declared(const driver *it, const char *name) {
    for (int i = 0; i < it->num_declared; ++i)
        if (strcmp(it->declared[i], name) == 0) return 1;
    return 0;
}

/* connect RANK NUM_RANKS [connection=PATH] [simulation=ID] [timeout=S] [NAME:VALUE] ...; work ... for rank 0 of 1 */
static void connect_it(driver *it, char *words[], int num, int num_positional) {
    stream_options options = STREAM_OPTIONS_DEFAULT;
    const char *names[MAX_WORDS];
    double values[MAX_WORDS];
    for (int i = num_positional; i < num; ++i) {
        char *colon = strchr(words[i], ':');
        if (strncmp(words[i], "connection=", 11) == 0) options.connection = words[i] + 11;
        else if (strncmp(words[i], "simulation=", 11) == 0) options.simulation_id = atoll(words[i] + 11);
        else if (strncmp(words[i], "timeout=", 8) == 0) options.timeout_s = atof(words[i] + 8);
        else if (colon) {
            *colon = 0;
            names[options.num_parameters] = words[i];
            values[options.num_parameters++] = atof(colon + 1);
        }
    }
    if (options.connection && strcmp(options.connection, "-") == 0) options.connection = NULL;
    options.parameter_names = names;
    options.parameter_values = values;
    int rank = num_positional > 1 ? atoi(words[1]) : 0, num_ranks = num_positional > 1 ? atoi(words[2]) : 1;
    it->num_declared = 0;
    it->failed_put[0] = 0;
    int code = stream_connect_with(&it->simulation, rank, num_ranks, &options);
    print_result(code, stream_error(it->simulation), "");
}

/* declare NAME SHAPE OFFSET DTYPE COUNT; with a DTYPE, the block is put by stream_put afterwards */
static void declare(driver *it, char *words[]) {
    extents shape = parse_extents(words[2]), offset = parse_extents(words[3]), count = parse_extents(words[5]);
    int number = dtype_number(words[4]);
    int code = stream_declare_field(it->simulation, words[1], number < 0 ? STREAM_AS_PUT : DTYPES[number].dtype,
                                    shape.num, shape.at, offset.num < 0 ? NULL : offset.at,
                                    count.num < 0 ? NULL : count.at);
    if (number >= 0 && it->num_declared < MAX_DECLARED)
        snprintf(it->declared[it->num_declared++], sizeof it->declared[0], "%s", words[1]);
    print_result(code, stream_error(it->simulation), "");
}

/* put NAME DTYPE COUNT SEED [LAYOUT]; the next send tells whether it failed */
static void put(driver *it, char *words[], int num) {
    int number = dtype_number(words[2]);
    extents count = parse_extents(words[3]);
    block data = make_block(number, count, atoll(words[4]), num > 5 ? words[5] : "contiguous");
    int code = STREAM_ERROR_MEMORY;
    if (data.memory && is_declared(it, words[1]))
        code = data.is_contiguous ? stream_put(it->simulation, words[1], data.first)
                                  : stream_put_strided(it->simulation, words[1], data.first, data.strides);
    else if (data.memory)
        code = stream_put_array(it->simulation, words[1], DTYPES[number].dtype, count.num, count.at,
                                data.is_contiguous ? NULL : data.strides, data.first);
    free(data.memory);
    if (code < 0 && !it->failed_put[0])
        snprintf(it->failed_put, sizeof it->failed_put, "error %s: %s", code_name(code), stream_error(it->simulation));
    printf("staged\n");
}

static void send_it(driver *it, int64_t step) {
    if (it->failed_put[0]) printf("%s\n", it->failed_put);
    else {
        int code = stream_send(it->simulation, step);
        print_result(code, stream_error(it->simulation), "");
    }
    it->failed_put[0] = 0;
}

static void tell(driver *it, const char *what, const char *name) {
    char text[256] = "";
    int code = STREAM_OK;
    int64_t num = -1, first = 0, every = 1;
    double value = -1;
    if (strcmp(what, "id") == 0) snprintf(text, sizeof text, "%lld", (long long)stream_id(it->simulation));
    else if (strcmp(what, "attempt") == 0) snprintf(text, sizeof text, "%lld", (long long)stream_attempt(it->simulation));
    else if (strcmp(what, "stop_reason") == 0) snprintf(text, sizeof text, "%s", stream_stop_reason(it->simulation));
    else if (strcmp(what, "parameter") == 0) {
        code = stream_parameter(it->simulation, name, &value);
        snprintf(text, sizeof text, "%.3f", value);
    } else {
        code = stream_time_steps(it->simulation, &num, &first, &every);
        if (num < 0) snprintf(text, sizeof text, "-1");
        else snprintf(text, sizeof text, "%lld %lld %lld", (long long)num, (long long)first, (long long)every);
    }
    print_result(code, stream_error(it->simulation), text);
}

static void leave(driver *it, int (*how)(stream_simulation **)) {
    int code = how(&it->simulation);
    print_result(code, stream_error(NULL), "");
}

static void obey(driver *it, char *words[], int num, const char *rest) {
    const char *verb = words[0];
    if (strcmp(verb, "connect") == 0) connect_it(it, words, num, 3);
    else if (strcmp(verb, "work") == 0) connect_it(it, words, num, 1);
    else if (strcmp(verb, "declare") == 0) declare(it, words);
    else if (strcmp(verb, "put") == 0) put(it, words, num);
    else if (strcmp(verb, "send") == 0) send_it(it, atoll(words[1]));
    else if (strcmp(verb, "next") == 0) {
        int code = stream_next(it->simulation);
        print_result(code, stream_error(it->simulation), "");
    } else if (strcmp(verb, "invalidate") == 0) {
        int code = stream_invalidate(it->simulation, rest);
        print_result(code, stream_error(it->simulation), "");
    } else if (strcmp(verb, "finish") == 0) leave(it, stream_finish);
    else if (strcmp(verb, "abandon") == 0) leave(it, stream_abandon);
    else tell(it, verb, num > 1 ? words[1] : "");
}

int main(void) {
    static driver it;
    char line[MAX_LINE], copy[MAX_LINE], *words[MAX_WORDS];
    while (fgets(line, sizeof line, stdin)) {
        line[strcspn(line, "\n")] = 0;
        memcpy(copy, line, sizeof copy);
        int num = 0;
        for (char *word = strtok(copy, " "); word && num < MAX_WORDS; word = strtok(NULL, " ")) words[num++] = word;
        const char *space = strchr(line, ' ');
        if (num) obey(&it, words, num, space ? space + 1 : "");
        fflush(stdout);
    }
    stream_abandon(&it.simulation);
    return 0;
}
