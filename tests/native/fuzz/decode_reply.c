/* Any bytes as a message of the server. What is decoded must keep the bounds of the protocol, in every byte of it. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "dtype.h"
#include "wire.h"

#define MUST(condition)   \
    do {                  \
        if (!(condition)) \
            abort();      \
    } while (0)

static void check_field(const sc_field *field) {
    int64_t num_values = 1;
    MUST(field->name != NULL && field->ndim >= 0 && field->ndim <= STREAM_MAX_DIMENSIONS);
    MUST(field->dtype == STREAM_AS_PUT || sc_dtype_is_valid(field->dtype));
    for (int d = 0; d < field->ndim; ++d)
        MUST(field->shape[d] >= 1 && !__builtin_mul_overflow(num_values, field->shape[d], &num_values));
    MUST(num_values <= (int64_t)1 << 59);
}

static void check_welcome(const sc_welcome *it) {
    int64_t last;
    MUST(strlen(it->study) <= SC_MAX_TEXT_BYTES && it->simulation >= 0);
    MUST(it->num_server_ranks >= 1 && it->num_server_ranks <= 65535);
    for (int i = 0; i < it->num_server_ranks; ++i) {
        MUST(it->endpoints[i].num >= 1 && it->endpoints[i].num <= 16);
        for (int j = 0; j < it->endpoints[i].num; ++j)
            MUST(strlen(it->endpoints[i].addresses[j]) <= SC_MAX_TEXT_BYTES);
    }
    for (int i = 0; i < it->parameters.num; ++i)
        MUST(strlen(it->parameters.names[i]) <= SC_MAX_TEXT_BYTES && isfinite(it->parameters.values[i]));
    MUST((it->num_steps == -1 || it->num_steps >= 1) && it->every >= 1);
    if (it->num_steps >= 1 && !__builtin_mul_overflow(it->num_steps - 1, it->every, &last))
        MUST(!__builtin_add_overflow(it->first, last, &last));
    MUST(it->num_fields >= 0 && it->num_fields <= SC_MAX_FIELDS);
    for (int i = 0; i < it->num_fields; ++i)
        check_field(&it->fields[i]);
    MUST(it->routing >= 0 && it->routing <= SC_BY_SIMULATIONS && it->window_bytes >= 0);
    MUST(it->if_server_away >= 0 && it->if_server_away <= SC_AWAY_STOP && it->wait_s >= 0 && isfinite(it->wait_s));
}

static void check_reply(const sc_reply *reply) {
    switch (reply->kind) {
    case SC_WELCOME: check_welcome(&reply->welcome); break;
    case SC_OPENED:
        MUST(reply->opened.credit >= 1);
        for (size_t i = 0; i < reply->opened.num_known_bytes; ++i)
            MUST(reply->opened.known[i] <= 255);
        break;
    case SC_ACK: MUST(reply->ack.received >= 0 && reply->ack.durable >= 0); break;
    case SC_INVALIDATED: MUST(reply->invalidated >= 0); break;
    case SC_STOPPED: MUST(strlen(reply->stop_text) <= SC_MAX_TEXT_BYTES); break;
    case SC_REFUSAL:
        MUST(reply->refusal.reason >= 1 && reply->refusal.reason <= 15 && reply->refusal.sequence >= -1);
        MUST(strlen(reply->refusal.text) <= SC_MAX_TEXT_BYTES);
        break;
    default: abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t num_bytes) {
    sc_reply reply;
    sc_error error;
    int status = sc_decode_reply(bytes, num_bytes, &reply, &error);
    if (status != STREAM_OK) {
        MUST(status == STREAM_ERROR_REFUSED && error.code == status && strlen(error.text) < SC_ERROR_BYTES);
        return 0;
    }
    check_reply(&reply);
    sc_reply_free(&reply);
    return 0;
}
