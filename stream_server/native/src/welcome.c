#include "welcome.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "dtype.h"

#define LARGEST_FIELD ((int64_t)1 << 59)

enum { MAX_ENDPOINTS = 65535, MAX_ADDRESSES = 16, MAX_PARAMETERS = 65535 };
enum { TEXT_BYTES = 2, LIST_BYTES = 2, PARAMETER_BYTES = TEXT_BYTES + 8, FIELD_BYTES = TEXT_BYTES + 3 };

/* Zeros; NULL for none of them, or after a lack of memory. */
static void *allocate(sc_reader *reader, int num, size_t element_bytes) {
    if (num == 0)
        return NULL;
    void *memory = calloc((size_t)num, element_bytes);
    if (memory == NULL)
        sc_read_no_memory(reader);
    return memory;
}

static void read_addresses(sc_reader *reader, sc_addresses *endpoint) {
    int num = sc_read_length(reader, MAX_ADDRESSES, TEXT_BYTES);
    if (num == 0)
        sc_read_problem(reader, "no server rank, or one without an address");
    endpoint->addresses = allocate(reader, num, sizeof *endpoint->addresses);
    for (; endpoint->num < num && !reader->failed; ++endpoint->num)
        endpoint->addresses[endpoint->num] = sc_read_text(reader);
}

static void read_endpoints(sc_reader *reader, sc_welcome *welcome) {
    int num = sc_read_length(reader, MAX_ENDPOINTS, LIST_BYTES);
    if (num == 0)
        sc_read_problem(reader, "no server rank, or one without an address");
    welcome->endpoints = allocate(reader, num, sizeof *welcome->endpoints);
    for (; welcome->num_server_ranks < num && !reader->failed; ++welcome->num_server_ranks)
        read_addresses(reader, &welcome->endpoints[welcome->num_server_ranks]);
}

static char *copied(sc_reader *reader, sc_slice slice) {
    char *text = reader->failed ? NULL : sc_copy_slice(slice);
    if (text == NULL)
        sc_read_no_memory(reader);
    return text;
}

static void read_parameters(sc_reader *reader, sc_parameters *parameters) {
    int num = sc_read_length(reader, MAX_PARAMETERS, PARAMETER_BYTES);
    sc_slice *names = allocate(reader, num, sizeof *names);
    parameters->names = allocate(reader, num, sizeof *parameters->names);
    parameters->values = allocate(reader, num, sizeof *parameters->values);
    for (int i = 0; i < num && !reader->failed; ++i) {
        names[i] = sc_read_slice(reader);
        parameters->names[i] = copied(reader, names[i]);
        parameters->values[i] = sc_read_real(reader);
        parameters->num = i + 1;
    }
    if (!reader->failed && sc_any_twice(names, (size_t)num))
        sc_read_problem(reader, "a name occurs twice");
    free(names);
}

static void read_time_steps(sc_reader *reader, sc_welcome *welcome) {
    welcome->num_steps = sc_read_maybe_count(reader, 1);
    welcome->first = sc_read_label(reader);
    welcome->every = sc_read_count(reader, 1);
    if (reader->failed || welcome->num_steps < 1)
        return;
    uint64_t most = (uint64_t)INT64_MAX - (uint64_t)welcome->first;
    if ((uint64_t)welcome->num_steps - 1 > most / (uint64_t)welcome->every)
        sc_read_problem(reader, "the last time step is above 2^63 - 1");
}

/* False: there are more than LARGEST_FIELD values. */
static bool read_shape(sc_reader *reader, sc_field *field) {
    uint32_t ndim = sc_read_u8(reader);
    if (ndim > STREAM_MAX_DIMENSIONS)
        sc_read_problem(reader, "%" PRIu32 " is not between 0 and %d", ndim, STREAM_MAX_DIMENSIONS);
    bool fits = true;
    int64_t num_values = 1;
    for (; field->ndim < (int)ndim && !reader->failed; ++field->ndim) {
        int64_t size = sc_read_count(reader, 1);
        field->shape[field->ndim] = size;
        fits = fits && !reader->failed && size <= LARGEST_FIELD / num_values;
        if (fits)
            num_values *= size;
    }
    return fits;
}

static void read_field(sc_reader *reader, sc_field *field, sc_slice *name) {
    *name = sc_read_slice(reader);
    field->name = copied(reader, *name);
    bool fits = read_shape(reader, field);
    uint32_t dtype = sc_read_u8(reader);
    if (dtype >= SC_NUM_DTYPES)
        sc_read_problem(reader, "%" PRIu32 " is no dtype", dtype);
    field->dtype = (stream_dtype)dtype;
    field->optional = sc_read_flag(reader);
    if (name->num_bytes == 0 || !fits)
        sc_read_problem(reader, "field '%s' has no name, or more than 2^59 values", reader->failed ? "" : field->name);
}

static void read_fields(sc_reader *reader, sc_welcome *welcome) {
    sc_slice names[SC_MAX_FIELDS];
    int num = sc_read_length(reader, SC_MAX_FIELDS, FIELD_BYTES);
    welcome->fields = allocate(reader, num, sizeof *welcome->fields);
    for (; welcome->num_fields < num && !reader->failed; ++welcome->num_fields)
        read_field(reader, &welcome->fields[welcome->num_fields], &names[welcome->num_fields]);
    if (!reader->failed && sc_any_twice(names, (size_t)num))
        sc_read_problem(reader, "a field occurs twice");
}

static int read_choice(sc_reader *reader, const char *what, uint32_t last) {
    uint32_t number = sc_read_u8(reader);
    if (number > last)
        sc_read_problem(reader, "%" PRIu32 " is no %s", number, what);
    return (int)number;
}

void sc_read_welcome(sc_reader *reader, sc_welcome *welcome) {
    welcome->study = sc_read_text(reader);
    welcome->simulation = sc_read_count(reader, 0);
    welcome->attempt = sc_read_u32(reader, 0);
    welcome->epoch = sc_read_u32(reader, 0);
    read_endpoints(reader, welcome);
    read_parameters(reader, &welcome->parameters);
    read_time_steps(reader, welcome);
    read_fields(reader, welcome);
    welcome->routing = read_choice(reader, "Routing", SC_BY_SIMULATIONS);
    welcome->window_bytes = sc_read_count(reader, 0);
    welcome->if_server_away = read_choice(reader, "Away", SC_AWAY_STOP);
    welcome->wait_s = sc_read_real(reader);
    if (welcome->wait_s < 0)
        sc_read_problem(reader, "nobody can wait %g s", welcome->wait_s);
}

void sc_addresses_free(sc_addresses *addresses) {
    for (int i = 0; i < addresses->num; ++i)
        free(addresses->addresses[i]);
    free(addresses->addresses);
    memset(addresses, 0, sizeof *addresses);
}

void sc_parameters_free(sc_parameters *parameters) {
    for (int i = 0; i < parameters->num; ++i)
        free(parameters->names[i]);
    free(parameters->names);
    free(parameters->values);
    memset(parameters, 0, sizeof *parameters);
}

void sc_welcome_free(sc_welcome *welcome) {
    for (int i = 0; i < welcome->num_server_ranks; ++i)
        sc_addresses_free(&welcome->endpoints[i]);
    for (int i = 0; i < welcome->num_fields; ++i)
        free(welcome->fields[i].name);
    free(welcome->study);
    free(welcome->endpoints);
    free(welcome->fields);
    sc_parameters_free(&welcome->parameters);
    memset(welcome, 0, sizeof *welcome);
}
