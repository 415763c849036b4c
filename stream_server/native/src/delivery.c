#include "delivery.h"

#include <stdio.h>
#include <stdlib.h>

#include "control.h"

sc_delivery *sc_delivery_new(const sc_participant *participant, sc_welcome *welcome) {
    const sc_hello *hello = participant->hello;
    sc_delivery *delivery = calloc(1, sizeof *delivery);
    sc_fields *fields =
        sc_fields_new(welcome->fields, welcome->num_fields, (int)hello->rank, (int)hello->num_ranks);
    if (delivery == NULL || fields == NULL) {
        free(delivery);
        sc_fields_free(fields);
        return NULL;
    }
    delivery->fields = fields;
    delivery->welcome = *welcome;
    delivery->hello = *hello;
    delivery->hello.simulation = welcome->simulation;
    delivery->client = (sc_client){
        .context = participant->context,
        .pool = participant->pool,
        .watch = participant->watch,
        .rank = hello->rank,
        .num_ranks = hello->num_ranks,
        .silence_s = participant->timeout_s,
    };
    if (welcome->if_server_away == SC_AWAY_WAIT && welcome->wait_s > participant->timeout_s)
        delivery->client.silence_s = welcome->wait_s;
    participant->watch->ignores_touches = welcome->if_server_away != SC_AWAY_WAIT;
    snprintf(delivery->client.who, sizeof delivery->client.who, "simulation %lld rank %lu",
             (long long)welcome->simulation, (unsigned long)hello->rank);
    return delivery;
}

void sc_delivery_free(sc_delivery *delivery) {
    if (delivery == NULL)
        return;
    if (delivery->has_conversation)
        sc_conversation_free(&delivery->conversation);
    sc_fields_free(delivery->fields);
    sc_welcome_free(&delivery->welcome);
    free(delivery);
}

const sc_welcome *sc_delivery_welcome(const sc_delivery *delivery) {
    return delivery->has_conversation ? delivery->conversation.welcome : &delivery->welcome;
}

static void converse(sc_delivery *delivery) {
    if (delivery->has_conversation)
        return;
    delivery->has_conversation = true;
    delivery->client.blocks = sc_fields_blocks(delivery->fields, &delivery->client.num_blocks);
    if (delivery->client.num_blocks < 0)
        delivery->client.num_blocks = 0;
    delivery->client.statics = sc_fields_statics(delivery->fields);
    sc_conversation_begin(&delivery->conversation, &delivery->client, &delivery->hello, &delivery->welcome);
}

static bool may_resume(sc_delivery *delivery, bool look_now) {
    return !delivery->is_lost && sc_conversation_may_resume(&delivery->conversation, look_now);
}

/* After an error: end the simulation, or let it run on without its server, as the study says. */
static int go_on_without(sc_delivery *delivery, int code, sc_error *error) {
    bool is_gone = code == STREAM_ERROR_UNREACHABLE || code == STREAM_ERROR_STEPS_LOST;
    if (!is_gone || delivery->welcome.if_server_away != SC_AWAY_CONTINUE)
        return code;
    delivery->is_away = true;
    delivery->is_lost = code == STREAM_ERROR_STEPS_LOST;
    return sc_conversation_interrupt(&delivery->conversation, error);
}

int sc_delivery_send(sc_delivery *delivery, int64_t index, sc_error *error) {
    uint64_t present;
    sc_slice arrays[SC_MAX_FIELDS];
    int code = sc_fields_take(delivery->fields, &present, arrays, error);
    if (code != STREAM_OK)
        return code;
    converse(delivery);
    sc_conversation *conversation = &delivery->conversation;
    if (!delivery->is_away || may_resume(delivery, false)) {
        code = sc_conversation_send(conversation, index, present, arrays, error);
        if (code == STREAM_OK)
            delivery->is_away = false;
        else if ((code = go_on_without(delivery, code, error)) != STREAM_OK)
            return code;
    }
    if (delivery->is_away && !delivery->is_lost)
        return sc_conversation_keep(conversation, index, present, arrays, error);
    return STREAM_OK;
}

static void say_that_it_ends_without(const sc_delivery *delivery) {
    fprintf(stderr,
            "%s: the server of study %s is away. The simulation ends without it; a new attempt will produce what is "
            "missing.\n",
            delivery->client.who, delivery->welcome.study);
}

int sc_delivery_finish(sc_delivery *delivery, sc_error *error) {
    converse(delivery);
    if (!delivery->is_away || may_resume(delivery, true)) {
        int code = sc_conversation_finish(&delivery->conversation, error);
        if (code == STREAM_OK || (code = go_on_without(delivery, code, error)) != STREAM_OK)
            return code;
    }
    say_that_it_ends_without(delivery);
    return STREAM_OK;
}

static int take_answer(const sc_delivery *delivery, const sc_reply *answer, sc_error *error) {
    if (answer->kind == SC_INVALIDATED || answer->kind == SC_STOPPED)
        return STREAM_OK;
    return sc_fail(error, STREAM_ERROR_REFUSED, "%s could not be invalidated: %s", delivery->client.who,
                   sc_answer_text(answer));
}

int sc_delivery_invalidate(sc_delivery *delivery, const char *reason, sc_error *error) {
    const sc_client *client = &delivery->client;
    sc_asker asker = {client->context, client->watch, client->who, client->silence_s};
    sc_delivery_close(delivery);
    sc_message question = sc_encode_invalidate(sc_delivery_welcome(delivery), reason);
    sc_reply answer;
    int code = sc_ask(&asker, &question, &answer, error);
    sc_message_free(&question);
    if (code == STREAM_ERROR_UNREACHABLE && delivery->welcome.if_server_away == SC_AWAY_CONTINUE) {
        say_that_it_ends_without(delivery);
        return STREAM_OK;
    }
    if (code != STREAM_OK)
        return code;
    code = take_answer(delivery, &answer, error);
    sc_reply_free(&answer);
    return code;
}

void sc_delivery_abandon(sc_delivery *delivery) {
    if (delivery->has_conversation)
        sc_conversation_abandon(&delivery->conversation);
}

void sc_delivery_close(sc_delivery *delivery) {
    if (delivery->has_conversation)
        sc_conversation_close(&delivery->conversation);
}

bool sc_delivery_has_stopped(const sc_delivery *delivery) {
    return delivery->has_conversation && delivery->conversation.has_stopped;
}

const char *sc_delivery_stop_reason(const sc_delivery *delivery) {
    const char *reason = delivery->has_conversation ? delivery->conversation.stop_reason : NULL;
    return reason == NULL ? "" : reason;
}
