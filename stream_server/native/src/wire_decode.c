#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "dtype.h"
#include "reader.h"

enum { PREFIX_BYTES = 8, ACK_BYTES = 25, ENDED = 1, STOP = 2, MAX_CONTROL_BYTES = 4 * 1024 * 1024 };

static const char *const reasons[] = {
    "malformed",    "wrong_protocol", "wrong_study", "unknown_simulation", "stale_attempt",
    "stale_incarnation", "wrong_fields",   "wrong_blocks", "wrong_step", "beyond_credit",
    "not_open",     "busy", "no_simulation_left", "wrong_key", "checksum",
};
enum { NUM_REASONS = sizeof reasons / sizeof *reasons };

static uint64_t get(const uint8_t *bytes, int num_bytes) {
    uint64_t value = 0;
    for (int i = 0; i < num_bytes; ++i)
        value |= (uint64_t)bytes[i] << (8 * i);
    return value;
}

static int wrong_version(int64_t version, sc_error *error) {
    return sc_fail(error, STREAM_ERROR_REFUSED,
                   "the message is of protocol version %" PRId64 ", but this is version %d", version,
                   SC_PROTOCOL_VERSION);
}

static int decode_packed(const uint8_t *bytes, size_t num_bytes, sc_reply *reply, sc_error *error) {
    if (num_bytes < PREFIX_BYTES)
        return sc_fail(error, STREAM_ERROR_REFUSED, "%zu bytes are too few for a message", num_bytes);
    if (get(bytes + 4, 2) != SC_PROTOCOL_VERSION)
        return wrong_version((int64_t)get(bytes + 4, 2), error);
    int kind = (int)get(bytes + 6, 2);
    if (kind == SC_DATA_KIND)
        return sc_fail(error, STREAM_ERROR_REFUSED, "a message of kind %d comes from clients only", kind);
    if (kind != SC_ACK_KIND)
        return sc_fail(error, STREAM_ERROR_REFUSED, "%d is no kind of message", kind);
    if (num_bytes != ACK_BYTES)
        return sc_fail(error, STREAM_ERROR_REFUSED, "an Ack has %d bytes, not %zu", ACK_BYTES, num_bytes);
    uint64_t received = get(bytes + 8, 8), durable = get(bytes + 16, 8);
    unsigned flags = bytes[24];
    if ((received | durable) > INT64_MAX || (flags & ~(unsigned)(ENDED | STOP)))
        return sc_fail(error, STREAM_ERROR_REFUSED, "a mark is above 2^63 - 1, or a flag is unknown");
    reply->kind = SC_ACK;
    reply->ack = (sc_ack){(int64_t)received, (int64_t)durable, flags & ENDED, flags & STOP};
    return STREAM_OK;
}

static int digit_of(uint8_t character) {
    if (character >= '0' && character <= '9')
        return character - '0';
    return character >= 'a' && character <= 'f' ? character - 'a' + 10 : -1;
}

static void read_known(sc_reader *reader, const sc_json_value *value, sc_opened *opened) {
    if (reader->failed)
        return;
    if (value->kind != SC_JSON_TEXT || value->text.num_bytes % 2 != 0) {
        sc_read_problem(reader, "must be pairs of digits");
        return;
    }
    opened->known = sc_read_allocate(reader, value->text.num_bytes / 2, 1);
    for (size_t i = 0; i < value->text.num_bytes / 2 && !reader->failed; ++i) {
        int high = digit_of(value->text.bytes[2 * i]), low = digit_of(value->text.bytes[2 * i + 1]);
        if (high < 0 || low < 0)
            sc_read_problem(reader, "must be pairs of the digits 0 to 9 and a to f");
        opened->known[i] = (uint8_t)(16 * high + low);
        opened->num_known_bytes = i + 1;
    }
}

static void read_opened(sc_reader *reader, const sc_json_value *top, sc_opened *opened) {
    static const char *const keys[] = {"message", "protocol", "incarnation", "credit", "known", "segment", NULL};
    sc_read_keys(reader, top, keys);
    opened->incarnation = (uint32_t)sc_read_whole(reader, sc_read_member(reader, top, "incarnation"), 0, UINT32_MAX);
    opened->credit = (uint32_t)sc_read_whole(reader, sc_read_member(reader, top, "credit"), 1, UINT32_MAX);
    read_known(reader, sc_read_member(reader, top, "known"), opened);
    opened->has_segment = sc_read_flag(reader, sc_read_default(reader, top, "segment"));
}

static void read_invalidated(sc_reader *reader, const sc_json_value *top, int64_t *simulation) {
    static const char *const keys[] = {"message", "protocol", "simulation", NULL};
    sc_read_keys(reader, top, keys);
    *simulation = sc_read_whole(reader, sc_read_member(reader, top, "simulation"), 0, INT64_MAX);
}

static char *empty_text(sc_reader *reader) {
    return sc_read_allocate(reader, 1, 1);
}

static void read_stop(sc_reader *reader, const sc_json_value *top, char **text) {
    static const char *const keys[] = {"message", "protocol", "text", NULL};
    sc_read_keys(reader, top, keys);
    const sc_json_value *value = sc_read_default(reader, top, "text");
    *text = value == NULL ? empty_text(reader) : sc_read_text(reader, value, 0, SC_MAX_TEXT_BYTES);
}

static void read_refusal(sc_reader *reader, const sc_json_value *top, sc_refusal *refusal) {
    static const char *const keys[] = {"message", "protocol", "reason", "text", "sequence", NULL};
    sc_read_keys(reader, top, keys);
    refusal->reason = 1 + sc_read_choice(reader, sc_read_member(reader, top, "reason"), reasons, NUM_REASONS);
    refusal->text = sc_read_text(reader, sc_read_member(reader, top, "text"), 0, SC_MAX_TEXT_BYTES);
    const sc_json_value *sequence = sc_read_optional(reader, top, "sequence");
    refusal->sequence = sequence == NULL ? -1 : sc_read_whole(reader, sequence, 0, INT64_MAX);
}

#define LARGEST_FIELD ((int64_t)1 << 59)

enum { MAX_ENDPOINTS = 65535 };

static void read_endpoints(sc_reader *reader, const sc_json_value *list, sc_welcome *welcome) {
    if (!sc_read_entries(reader, list, SC_JSON_LIST, 1, MAX_ENDPOINTS))
        return;
    welcome->endpoints = sc_read_allocate(reader, list->num, sizeof *welcome->endpoints);
    if (welcome->endpoints == NULL)
        return;
    SC_JSON_EACH(entry, reader->json, list)
        sc_read_addresses(reader, entry, &welcome->endpoints[welcome->num_server_ranks++]);
}

static void read_time_steps(sc_reader *reader, const sc_json_value *object, sc_welcome *welcome) {
    static const char *const keys[] = {"num", "first", "every", NULL};
    sc_read_keys(reader, object, keys);
    const sc_json_value *num = sc_read_member(reader, object, "num");
    bool is_known = num != NULL && num->kind != SC_JSON_NULL;
    welcome->num_steps = is_known ? sc_read_whole(reader, num, 1, INT64_MAX) : -1;
    welcome->first = sc_read_whole(reader, sc_read_default(reader, object, "first"), INT64_MIN, INT64_MAX);
    const sc_json_value *every = sc_read_default(reader, object, "every");
    welcome->every = every == NULL ? 1 : sc_read_whole(reader, every, 1, INT64_MAX);
    if (reader->failed || welcome->num_steps < 1)
        return;
    uint64_t most = (uint64_t)INT64_MAX - (uint64_t)welcome->first;
    if ((uint64_t)welcome->num_steps - 1 > most / (uint64_t)welcome->every)
        sc_read_problem(reader, "must have its last time step below 2^63");
}

static void read_shape(sc_reader *reader, const sc_json_value *list, sc_field *field) {
    if (!sc_read_entries(reader, list, SC_JSON_LIST, 0, STREAM_MAX_DIMENSIONS))
        return;
    int64_t num_values = 1;
    SC_JSON_EACH(entry, reader->json, list) {
        int64_t size = sc_read_whole(reader, entry, 1, INT64_MAX);
        if (!reader->failed && size > LARGEST_FIELD / num_values)
            sc_read_problem(reader, "must have at most 2^59 values");
        if (reader->failed)
            return;
        num_values *= size;
        field->shape[field->ndim++] = size;
    }
}

static void read_field(sc_reader *reader, const sc_json_value *object, sc_field *field) {
    static const char *const keys[] = {"name", "shape", "dtype", "optional", "per", "ragged", NULL};
    static const char *const per[] = {"step", "simulation"};
    sc_read_keys(reader, object, keys);
    field->name = sc_read_text(reader, sc_read_member(reader, object, "name"), 1, SC_MAX_TEXT_BYTES);
    read_shape(reader, sc_read_member(reader, object, "shape"), field);
    field->dtype = (stream_dtype)sc_read_choice(reader, sc_read_default(reader, object, "dtype"), sc_dtype_codes,
                                                SC_NUM_DTYPES);
    field->optional = sc_read_flag(reader, sc_read_default(reader, object, "optional"));
    field->is_static = sc_read_choice(reader, sc_read_default(reader, object, "per"), per, 2) == 1;
    field->ragged = sc_read_flag(reader, sc_read_default(reader, object, "ragged"));
    if (field->ragged && field->ndim == 0)
        sc_read_problem(reader, "has no extent that could differ");
}

static void read_fields(sc_reader *reader, const sc_json_value *list, sc_welcome *welcome) {
    if (!sc_read_entries(reader, list, SC_JSON_LIST, 0, SC_MAX_FIELDS))
        return;
    sc_slice names[SC_MAX_FIELDS];
    welcome->fields = sc_read_allocate(reader, list->num, sizeof *welcome->fields);
    SC_JSON_EACH(entry, reader->json, list) {
        if (reader->failed)
            return;
        sc_field *field = &welcome->fields[welcome->num_fields++];
        read_field(reader, entry, field);
        names[welcome->num_fields - 1] = (sc_slice){(uint8_t *)field->name, reader->failed ? 0 : strlen(field->name)};
    }
    if (!reader->failed && sc_any_twice(names, list->num))
        sc_read_problem(reader, "has a name that occurs twice");
}

/* `welcome` begins as zeros; sc_welcome_free frees it, after a failure, too. */
static void read_welcome(sc_reader *reader, const sc_json_value *top, sc_welcome *welcome) {
    static const char *const keys[] = {"message",    "protocol",   "study",  "simulation", "attempt",
                                       "incarnation", "endpoints", "parameters", "time_steps", "fields",
                                       "routing", "window_bytes", "if_server_away", "wait_s", NULL};
    static const char *const routings[] = {"steps", "simulations"}, *const aways[] = {"wait", "continue", "stop"};
    sc_read_keys(reader, top, keys);
    welcome->study = sc_read_text(reader, sc_read_member(reader, top, "study"), 0, SC_MAX_TEXT_BYTES);
    welcome->simulation = sc_read_whole(reader, sc_read_member(reader, top, "simulation"), 0, INT64_MAX);
    welcome->attempt = (uint32_t)sc_read_whole(reader, sc_read_member(reader, top, "attempt"), 0, UINT32_MAX);
    welcome->incarnation = (uint32_t)sc_read_whole(reader, sc_read_member(reader, top, "incarnation"), 0, UINT32_MAX);
    read_endpoints(reader, sc_read_member(reader, top, "endpoints"), welcome);
    sc_read_parameters(reader, sc_read_member(reader, top, "parameters"), &welcome->parameters);
    read_time_steps(reader, sc_read_member(reader, top, "time_steps"), welcome);
    read_fields(reader, sc_read_member(reader, top, "fields"), welcome);
    welcome->routing = sc_read_choice(reader, sc_read_member(reader, top, "routing"), routings, 2);
    welcome->window_bytes = sc_read_whole(reader, sc_read_member(reader, top, "window_bytes"), 0, INT64_MAX);
    welcome->if_server_away = sc_read_choice(reader, sc_read_member(reader, top, "if_server_away"), aways, 3);
    welcome->wait_s = sc_read_real(reader, sc_read_member(reader, top, "wait_s"));
    if (welcome->wait_s < 0)
        sc_read_problem(reader, "must not be negative");
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

static void read_message(sc_reader *reader, const sc_json_value *top, sc_reply *reply) {
    static const char *const names[] = {"Welcome", "Opened", "Invalidated", "Stop", "Refusal"};
    static const int kinds[] = {SC_WELCOME, SC_OPENED, SC_INVALIDATED, SC_STOPPED, SC_REFUSAL};
    int place = sc_read_choice(reader, sc_read_member(reader, top, "message"), names, 5);
    if (reader->failed)
        return;
    reply->kind = kinds[place];
    switch (reply->kind) {
    case SC_WELCOME: read_welcome(reader, top, &reply->welcome); break;
    case SC_OPENED: read_opened(reader, top, &reply->opened); break;
    case SC_INVALIDATED: read_invalidated(reader, top, &reply->invalidated); break;
    case SC_STOPPED: read_stop(reader, top, &reply->stop_text); break;
    default: read_refusal(reader, top, &reply->refusal); break;
    }
}

static int decode_json(const char *text, size_t num_bytes, sc_reply *reply, sc_error *error) {
    if (num_bytes > MAX_CONTROL_BYTES)
        return sc_fail(error, STREAM_ERROR_REFUSED, "%zu bytes in one message, more than %d", num_bytes,
                       MAX_CONTROL_BYTES);
    sc_json json;
    int status = sc_json_parse(text, num_bytes, &json, STREAM_ERROR_REFUSED, error);
    if (status != STREAM_OK)
        return status;
    sc_reader reader = {&json, error, STREAM_ERROR_REFUSED, "message", STREAM_OK};
    const sc_json_value *top = &json.values[0];
    if (sc_read_entries(&reader, top, SC_JSON_OBJECT, 0, SIZE_MAX)) {
        int64_t version = sc_read_whole(&reader, sc_read_member(&reader, top, "protocol"), INT64_MIN, INT64_MAX);
        if (!reader.failed && version != SC_PROTOCOL_VERSION)
            reader.failed = wrong_version(version, error);
        read_message(&reader, top, reply);
    }
    sc_json_free(&json);
    return reader.failed;
}

int sc_decode_reply(const void *bytes, size_t num_bytes, sc_reply *reply, sc_error *error) {
    memset(reply, 0, sizeof *reply);
    bool is_packed = num_bytes >= 4 && memcmp(bytes, "STRM", 4) == 0;
    int status = is_packed ? decode_packed(bytes, num_bytes, reply, error) : decode_json(bytes, num_bytes, reply, error);
    if (status != STREAM_OK)
        sc_reply_free(reply);
    return status;
}

void sc_reply_free(sc_reply *reply) {
    switch (reply->kind) {
    case SC_WELCOME: sc_welcome_free(&reply->welcome); break;
    case SC_OPENED: free(reply->opened.known); break;
    case SC_STOPPED: free(reply->stop_text); break;
    case SC_REFUSAL: free(reply->refusal.text); break;
    default: break;
    }
    memset(reply, 0, sizeof *reply);
}
