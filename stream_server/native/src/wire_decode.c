#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "reader.h"
#include "welcome.h"

enum { PREFIX_BYTES = 8, LAST_REASON = 15 };

static int read_prefix(sc_reader *reader) {
    if (reader->num_bytes < PREFIX_BYTES) {
        sc_read_problem(reader, "%zu bytes are too few for a message", reader->num_bytes);
        return 0;
    }
    if (memcmp(reader->bytes, "STRM", 4) != 0) {
        sc_read_problem(reader, "the bytes do not begin as a message");
        return 0;
    }
    reader->position = 4;
    uint32_t version = sc_read_u16(reader);
    if (version != SC_PROTOCOL_VERSION)
        sc_read_problem(reader, "the message is of protocol version %" PRIu32 ", but this is version %d", version,
                        SC_PROTOCOL_VERSION);
    return (int)sc_read_u16(reader);
}

static void read_opened(sc_reader *reader, sc_opened *opened) {
    opened->epoch = sc_read_u32(reader, 0);
    opened->credit = sc_read_u32(reader, 1);
    sc_slice known = sc_read_blob(reader);
    if (known.num_bytes == 0)
        return;
    opened->known = (uint8_t *)sc_copy_slice(known);
    if (opened->known == NULL)
        sc_read_no_memory(reader);
    else
        opened->num_known_bytes = known.num_bytes;
}

static void read_ack(sc_reader *reader, sc_ack *ack) {
    ack->received = sc_read_count(reader, 0);
    ack->durable = sc_read_count(reader, 0);
    ack->ended = sc_read_flag(reader);
    ack->stop = sc_read_flag(reader);
}

static void read_refusal(sc_reader *reader, sc_refusal *refusal) {
    refusal->reason = (int)sc_read_u16(reader);
    if (refusal->reason < 1 || refusal->reason > LAST_REASON)
        sc_read_problem(reader, "%d is no Reason", refusal->reason);
    refusal->text = sc_read_text(reader);
    refusal->sequence = sc_read_maybe_count(reader, 0);
}

static void read_body(sc_reader *reader, sc_reply *reply) {
    switch (reply->kind) {
    case SC_WELCOME: sc_read_welcome(reader, &reply->welcome); break;
    case SC_OPENED: read_opened(reader, &reply->opened); break;
    case SC_ACK: read_ack(reader, &reply->ack); break;
    case SC_INVALIDATED: reply->invalidated = sc_read_count(reader, 0); break;
    case SC_STOPPED: reply->stop_text = sc_read_text(reader); break;
    case SC_REFUSAL: read_refusal(reader, &reply->refusal); break;
    case SC_HELLO:
    case SC_OPEN:
    case SC_DATA:
    case SC_END:
    case SC_PING:
    case SC_INVALIDATE: sc_read_problem(reader, "a message of kind %d comes from clients only", reply->kind); break;
    default: sc_read_problem(reader, "%d is no kind of message", reply->kind);
    }
}

int sc_decode_reply(const void *bytes, size_t num_bytes, sc_reply *reply, sc_error *error) {
    sc_reader reader = {bytes, num_bytes, 0, error, STREAM_OK};
    memset(reply, 0, sizeof *reply);
    reply->kind = read_prefix(&reader);
    if (!reader.failed)
        read_body(&reader, reply);
    sc_read_end(&reader);
    if (reader.failed)
        sc_reply_free(reply);
    return reader.failed;
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
