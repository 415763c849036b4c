#include "relay.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "stream_client.h"

#define MAX_FIELDS 64
#define MAX_NAME 64
#define MAX_TEXT 1024

typedef struct {
    int index;    /* in the study */
    int64_t size; /* values of this rank */
    bool is_put;
    char name[MAX_NAME + 1]; /* as the code calls it, as far as that can be printed */
} relayed_field;

/* Melissa's functions have no handle: there is one simulation in a process. */
static struct {
    sc_group *group;
    stream_simulation *simulation;
    bool has_failed;
    int num_fields;
    relayed_field fields[MAX_FIELDS];
    int64_t num_steps;
} relay;

sc_group *sc_relay_group(void) {
    return relay.group;
}

void sc_relay_fail(const char *format, ...) {
    char text[MAX_TEXT];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (!relay.has_failed) {
        fprintf(
            stderr,
            "melissa, rank %d of %d: %s\nThe simulation goes on, but the study gets nothing more of this rank. Others "
            "may wait until the study ends this attempt.\n",
            relay.group ? relay.group->rank : 0, relay.group ? relay.group->num_ranks : 1, text);
    }
    relay.has_failed = true;
    stream_abandon(&relay.simulation);
}

/* Negative results of the library end the relay; STREAM_STOP is fine. */
static bool succeeds(int result) {
    if (result >= 0) return true;
    sc_relay_fail("%s", stream_error(relay.simulation));
    return false;
}

/* A program that runs alone, or after the end of the study, sees no fields. */
static bool has_study(void) {
    return relay.simulation != NULL && stream_num_fields(relay.simulation) > 0;
}

/* Fortran passes names without a terminator: a name is what it has in common with a field of the study, in whose names
 * an underscore stands for signs such as brackets: "velocity[X]" is velocity_X, and never velocity. */
static bool begins_with(const char *name, const char *field) {
    for (; *field != '\0'; ++field, ++name) {
        if (*name != *field && !(*field == '_' && ispunct((unsigned char)*name))) return false;
    }
    return *name != '[';
}

static const char *field_name_of(int index) {
    return stream_field_name(relay.simulation, index);
}

/* The longest of the study's fields that `name` begins with, or -1. */
static int studied(const char *name) {
    int longest = -1;
    for (int i = 0; field_name_of(i) != NULL; ++i) {
        const size_t length = strlen(field_name_of(i));
        const bool fits = begins_with(name, field_name_of(i));
        if (fits && (longest < 0 || length > strlen(field_name_of(longest)))) longest = i;
    }
    return longest;
}

/* The study's field `index`, or NULL if melissa_init was not called for it. */
static relayed_field *relayed_at(int index) {
    for (relayed_field *it = relay.fields; it < relay.fields + relay.num_fields; ++it) {
        if (it->index == index) return it;
    }
    return NULL;
}

static relayed_field *relayed(const char *name) {
    return relayed_at(studied(name));
}

/* How much of a name that may have no end can be printed. */
static int printable(const char *name) {
    int length = 0;
    while (length < MAX_NAME && isgraph((unsigned char)name[length])) ++length;
    return length;
}

static void fail_unknown(const char *name) {
    char names[MAX_TEXT / 2] = "";
    for (int i = 0; field_name_of(i) != NULL; ++i) {
        const size_t used = strlen(names);
        snprintf(names + used, sizeof names - used, "%s'%s'", i ? ", " : "", field_name_of(i));
    }
    sc_relay_fail("the name '%.*s' does not begin with that of a field in study.json: %s. Use the same names in both; "
                  "write velocity_X there for velocity[X].",
                  printable(name), name, names);
}

static bool connects(void) {
    if (relay.has_failed) return false;
    return succeeds(stream_connect(&relay.simulation, relay.group->rank, relay.group->num_ranks));
}

/* Codes that initialise a field whenever they send it say the same again. */
static void check_repeated(const relayed_field *field, const char *name, int size) {
    const char *studied_name = field_name_of(field->index);
    if (strlen(field->name) != (size_t)printable(name) || strncmp(field->name, name, strlen(field->name)) != 0) {
        sc_relay_fail("the names '%s' and '%.*s' both begin with the field '%s' of study.json. Give each a field there",
                      field->name, printable(name), name, studied_name);
    } else if (field->size != size) {
        sc_relay_fail("melissa_init was called twice for the field '%s' of study.json: with the size %lld, then %d",
                      studied_name, (long long)field->size, size);
    }
}

/* Whether this rank could declare the field, whatever the others have of it. */
static bool can_relay(const char *name, int size) {
    if (relay.has_failed) return false;
    if (name == NULL || size < 0) {
        sc_relay_fail("melissa_init needs the name of a field and a size of 0 or more");
    } else if (!has_study()) {
        return true;
    } else if (studied(name) < 0) {
        fail_unknown(name);
    } else if (relayed(name) != NULL) {
        check_repeated(relayed(name), name, size);
    }
    return !relay.has_failed;
}

static void fail_total(const char *field, int64_t total, int64_t expected) {
    sc_relay_fail("the field '%s' has %lld values in study.json, but the sizes that the %d ranks pass to melissa_init "
                  "sum up to %lld. Correct study.fields.%s.",
                  field, (long long)expected, relay.group->num_ranks, (long long)total, field);
}

static int64_t count_values(int ndim, const int64_t shape[]) {
    int64_t num = 1;
    for (int d = 0; d < ndim; ++d) num *= shape[d];
    return num;
}

/* A range of a field's values, counted through in C order, as a block: whole rows of the first dimension. Offset and
 * count of the block of `size` values from `before` on; false: they are no whole rows. */
static bool find_rows(int ndim, const int64_t shape[], int64_t before, int64_t size, int64_t offset[], int64_t count[]) {
    if (ndim == 0) return true;
    const int64_t row = count_values(ndim - 1, shape + 1);
    if (before % row || size % row) return false;
    for (int d = 0; d < ndim; ++d) {
        offset[d] = 0;
        count[d] = size > 0 ? shape[d] : 0;
    }
    offset[0] = size > 0 ? before / row : 0;
    count[0] = size / row;
    return true;
}

static void fail_rows(const char *field, int64_t before, int64_t size, int64_t num_values, int64_t row) {
    sc_relay_fail("this rank has the values %lld to %lld of the field '%s', which are no whole rows of %lld values. "
                  "Give the field one dimension in study.json, [%lld], and reshape it in the server class.",
                  (long long)before, (long long)(before + size - 1), field, (long long)row, (long long)num_values);
}

/* Declare and remember the block behind those of lower ranks. */
static bool declares(const char *name, int64_t size, int64_t before, int64_t total) {
    const char *field = field_name_of(studied(name));
    int64_t shape[STREAM_MAX_DIMENSIONS], offset[STREAM_MAX_DIMENSIONS], count[STREAM_MAX_DIMENSIONS];
    const int ndim = stream_field_shape(relay.simulation, field, shape);
    if (!succeeds(ndim)) return false;
    const int64_t num_values = count_values(ndim, shape);
    if (total != num_values) {
        fail_total(field, total, num_values);
    } else if (!find_rows(ndim, shape, before, size, offset, count)) {
        fail_rows(field, before, size, num_values, num_values / shape[0]);
    } else if (ndim > 0 || size > 0) { /* a scalar has no empty block: a rank without it does not declare it */
        succeeds(stream_declare_field(relay.simulation, field, STREAM_FLOAT64, ndim, shape, offset, count));
    }
    if (relay.has_failed) return false;
    relayed_field *it = &relay.fields[relay.num_fields++];
    *it = (relayed_field){.index = studied(name), .size = size};
    memcpy(it->name, name, printable(name));
    return true;
}

void sc_relay_init(const char *field_name, int size, sc_group *group) {
    const bool is_first = relay.group == NULL;
    relay.group = group;
    const bool is_connected = is_first ? connects() : !relay.has_failed;
    bool fine = is_connected && can_relay(field_name, size);
    int64_t before = 0, total = 0;
    /* A rank that failed takes part in what is collective, or the others would wait for it. */
    fine = group->agree(group, fine, size, &before, &total);
    if (fine && has_study() && relayed(field_name) == NULL) fine = declares(field_name, size, before, total);
    if (!group->agree(group, fine, 0, &before, &total)) {
        relay.has_failed = true; /* the rank that knows why says it */
        stream_abandon(&relay.simulation);
    }
}

/* Of a field for which melissa_init was never called, each rank has its even share: if it is not optional, the library
 * then says that it is missing, and no rank waits for what will not come. */
static void declare_others(void) {
    int64_t shape[STREAM_MAX_DIMENSIONS];
    for (int i = 0; i < stream_num_fields(relay.simulation) && !relay.has_failed; ++i) {
        const char *name = field_name_of(i);
        const int ndim = stream_field_shape(relay.simulation, name, shape);
        if (relayed_at(i) != NULL || (ndim == 0 && relay.group->rank > 0)) continue;
        succeeds(stream_declare_field(relay.simulation, name, STREAM_AS_PUT, ndim, shape, NULL, NULL));
    }
}

static void close_step(void) {
    int64_t num, first = 0, every = 1;
    if (relay.num_steps == 0) declare_others();
    if (relay.has_failed) return;
    if (!succeeds(stream_time_steps(relay.simulation, &num, &first, &every))) return;
    for (int i = 0; i < relay.num_fields; ++i) relay.fields[i].is_put = false;
    succeeds(stream_send(relay.simulation, first + relay.num_steps++ * every));
}

static int num_put(void) {
    int num = 0;
    for (int i = 0; i < relay.num_fields; ++i) num += relay.fields[i].is_put;
    return num;
}

/* Codes may initialise a field only when they first send it, so the first step waits for all fields of the study. */
static bool is_whole(void) {
    return num_put() == (relay.num_steps == 0 ? stream_num_fields(relay.simulation) : relay.num_fields);
}

void sc_relay_send(const char *field_name, const double *values) {
    if (relay.group == NULL) sc_relay_fail("melissa_send was called before melissa_init, or after melissa_finalize");
    if (relay.has_failed || !has_study()) return;
    relayed_field *field = field_name ? relayed(field_name) : NULL;
    if (field == NULL) {
        sc_relay_fail("melissa_send was called for '%.*s', for which melissa_init was not",
                      field_name ? printable(field_name) : 0, field_name ? field_name : "");
        return;
    }
    /* A field that comes again begins the next step; what the last one lacks is optional, or the library says so. */
    if (field->is_put) close_step();
    if (relay.has_failed) return;
    if (field->size > 0 && !succeeds(stream_put(relay.simulation, field_name_of(field->index), values))) return;
    field->is_put = true;
    if (is_whole()) close_step();
}

void sc_relay_finalize(void) {
    if (!relay.has_failed && has_study() && num_put() > 0) close_step();
    if (!relay.has_failed && relay.simulation != NULL) {
        const int result = stream_finish(&relay.simulation);
        if (result < 0) sc_relay_fail("%s", stream_error(NULL));
    }
    if (relay.group != NULL) relay.group->leave(relay.group);
    memset(&relay, 0, sizeof relay);
}
