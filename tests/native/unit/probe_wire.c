/* Decodes replies of the server, and encodes messages to it. */
#include "check.h"
#include "wire.h"
#include "words.h"

static void say_welcome(const sc_welcome *it) {
    say_word("welcome");
    say_text(it->study);
    say_number(it->simulation);
    say_number(it->attempt);
    say_number(it->incarnation);
    say_number(it->num_server_ranks);
    for (int i = 0; i < it->num_server_ranks; ++i) {
        say_number(it->endpoints[i].num);
        for (int j = 0; j < it->endpoints[i].num; ++j)
            say_text(it->endpoints[i].addresses[j]);
    }
    say_number(it->parameters.num);
    for (int i = 0; i < it->parameters.num; ++i) {
        say_text(it->parameters.names[i]);
        say_double(it->parameters.values[i]);
    }
    say_number(it->num_steps);
    say_number(it->first);
    say_number(it->every);
    say_number(it->num_fields);
    for (int i = 0; i < it->num_fields; ++i) {
        say_text(it->fields[i].name);
        say_extents(it->fields[i].ndim, it->fields[i].shape);
        say_number(it->fields[i].dtype);
        say_number(it->fields[i].optional);
    }
    say_number(it->routing);
    say_number(it->window_bytes);
    say_number(it->if_server_away);
    say_double(it->wait_s);
}

static void say_reply(const sc_reply *reply) {
    switch (reply->kind) {
    case SC_WELCOME: say_welcome(&reply->welcome); break;
    case SC_OPENED:
        say_word("opened");
        say_number(reply->opened.incarnation);
        say_number(reply->opened.credit);
        say_bytes(reply->opened.known, reply->opened.num_known_bytes);
        say_number(reply->opened.has_segment);
        break;
    case SC_ACK:
        say_word("ack");
        say_number(reply->ack.received);
        say_number(reply->ack.durable);
        say_number(reply->ack.ended);
        say_number(reply->ack.stop);
        break;
    case SC_INVALIDATED:
        say_word("invalidated");
        say_number(reply->invalidated);
        break;
    case SC_STOPPED:
        say_word("stop");
        say_text(reply->stop_text);
        break;
    case SC_REFUSAL:
        say_word("refusal");
        say_number(reply->refusal.reason);
        say_text(reply->refusal.text);
        say_number(reply->refusal.sequence);
        break;
    default: CHECK(false);
    }
}

static void decode(void) {
    size_t num_bytes;
    char *bytes = next_bytes(&num_bytes);
    /* A copy without the zero behind it, so that a read beyond its end is found. */
    char *exact = malloc(num_bytes);
    CHECK(exact != NULL || num_bytes == 0);
    if (num_bytes > 0)
        memcpy(exact, bytes, num_bytes);
    free(bytes);
    sc_reply reply;
    sc_error error;
    if (sc_decode_reply(exact, num_bytes, &reply, &error) != STREAM_OK) {
        CHECK(error.code == STREAM_ERROR_REFUSED);
        say_word("refused");
        say_text(error.text);
    } else {
        say_reply(&reply);
        sc_reply_free(&reply);
    }
    free(exact);
}

static void say_message(sc_message message) {
    CHECK(message.bytes != NULL);
    say_bytes(message.bytes, message.num_bytes);
    sc_message_free(&message);
    CHECK(message.bytes == NULL);
}

static sc_parameters next_parameters(void) {
    int num = (int)next_number();
    sc_parameters parameters = {num, calloc((size_t)num + 1, sizeof(char *)), calloc((size_t)num + 1, sizeof(double))};
    CHECK(parameters.names != NULL && parameters.values != NULL);
    for (int i = 0; i < num; ++i) {
        parameters.names[i] = next_bytes(NULL);
        parameters.values[i] = next_double();
    }
    return parameters;
}

static void hello(void) {
    char *study = next_bytes(NULL);
    sc_hello it = {.study = study, .simulation = next_number()};
    it.attempt = (uint32_t)next_number();
    it.rank = (uint32_t)next_number();
    it.num_ranks = (uint32_t)next_number();
    sc_parameters parameters = {0, NULL, NULL};
    if (next_number()) {
        parameters = next_parameters();
        it.parameters = &parameters;
    }
    say_message(sc_encode_hello(&it));
    sc_parameters_free(&parameters);
    free(study);
}

/* The numbers of the simulation that go into most messages. */
static sc_welcome next_welcome(void) {
    sc_welcome welcome = {.study = next_bytes(NULL)};
    welcome.simulation = next_number();
    welcome.attempt = (uint32_t)next_number();
    welcome.incarnation = (uint32_t)next_number();
    return welcome;
}

static bool next_segment(sc_segment *segment) {
    if (!next_number())
        return false;
    segment->process = next_number();
    segment->descriptor = (int)next_number();
    segment->num_bytes = next_natural();
    char *token = next_bytes(NULL);
    snprintf(segment->token, sizeof segment->token, "%s", token);
    free(token);
    return true;
}

static void open_blocks(void) {
    sc_welcome welcome = next_welcome();
    uint32_t rank = (uint32_t)next_number(), num_ranks = (uint32_t)next_number();
    int num_steps = (int)next_number(), num = num_steps + (int)next_number();
    sc_block blocks[SC_MAX_FIELDS];
    char *names[SC_MAX_FIELDS];
    for (int i = 0; i < num; ++i) {
        blocks[i].field = names[i] = next_bytes(NULL);
        blocks[i].dtype = (stream_dtype)next_number();
        blocks[i].ndim = next_extents(blocks[i].shape);
        next_extents(blocks[i].offset);
        next_extents(blocks[i].count);
    }
    sc_segment segment;
    bool has_segment = next_segment(&segment);
    say_message(sc_encode_open(&welcome, rank, num_ranks, blocks, num_steps, blocks + num_steps, num - num_steps,
                               has_segment ? &segment : NULL));
    for (int i = 0; i < num; ++i) {
        say_natural(sc_block_bytes(&blocks[i]));
        free(names[i]);
    }
    sc_welcome_free(&welcome);
}

static void end(void) {
    sc_welcome welcome = next_welcome();
    int64_t share = next_number(), total = next_number();
    say_message(sc_encode_end(&welcome, welcome.incarnation, share, total));
    sc_welcome_free(&welcome);
}

static void invalidate(void) {
    sc_welcome welcome = next_welcome();
    char *reason = next_bytes(NULL);
    say_message(sc_encode_invalidate(&welcome, reason));
    free(reason);
    sc_welcome_free(&welcome);
}

static void data(void) {
    sc_data it = {.simulation = next_number()};
    it.attempt = (uint32_t)next_number();
    it.incarnation = (uint32_t)next_number();
    it.sequence = next_number();
    it.index = next_number();
    it.present = next_natural();
    it.offset = next_number();
    it.num_steps = (uint32_t)next_number();
    it.field = (int)next_number();
    it.last = next_number();
    it.is_static = next_number();
    it.in_segment = next_number();
    it.has_checksum = next_number();
    it.checksum = (uint32_t)next_number();
    uint8_t header[SC_DATA_BYTES];
    sc_encode_data(&it, header);
    say_bytes(header, sizeof header);
}

static void place(void) {
    uint8_t payload[SC_PLACE_BYTES];
    sc_encode_place(next_natural(), payload);
    say_bytes(payload, sizeof payload);
}

static void check_parameters(void) {
    sc_parameters parameters = next_parameters();
    sc_error error = {STREAM_OK, ""};
    say_number(sc_check_parameters(&parameters, &error));
    say_text(error.text);
    sc_parameters_free(&parameters);
}

int main(void) {
    while (next_line()) {
        if (next_word_is("decode"))
            decode();
        else if (next_word_is("hello"))
            hello();
        else if (next_word_is("open"))
            open_blocks();
        else if (next_word_is("end"))
            end();
        else if (next_word_is("invalidate"))
            invalidate();
        else if (next_word_is("data"))
            data();
        else if (next_word_is("place"))
            place();
        else if (next_word_is("check_parameters"))
            check_parameters();
        else if (next_word_is("ping"))
            say_message(sc_encode_ping());
        else
            CHECK(false);
        end_answer();
    }
    return 0;
}
