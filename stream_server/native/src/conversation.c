#define _POSIX_C_SOURCE 200809L
#include "conversation.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "renewal.h"

#ifndef SC_RELEASE_S
#define SC_RELEASE_S 1.0
#endif

void sc_conversation_begin(sc_conversation *conversation, const sc_client *client, const sc_hello *hello,
                           const sc_welcome *welcome) {
    *conversation = (sc_conversation){.client = *client, .hello = hello, .welcome = welcome};
    conversation->epoch = sc_epoch_of(&client->watch->file, welcome);
    conversation->client.layout = sc_layout_of(client->blocks, client->num_blocks);
    sc_retention_begin(&conversation->client.retention, &conversation->client.layout, welcome->window_bytes);
}

void sc_conversation_free(sc_conversation *conversation) {
    sc_conversation_close(conversation);
    sc_retention_free(&conversation->client.retention);
    sc_entered_free(&conversation->entered);
    sc_welcome_free(&conversation->own_welcome);
    free(conversation->stop_reason);
}

void sc_conversation_close(sc_conversation *conversation) {
    if (conversation->has_session)
        sc_session_close(&conversation->session, false);
    conversation->has_session = false;
}

void sc_conversation_abandon(sc_conversation *conversation) {
    sc_error ignored;
    if (!conversation->has_session)
        return;
    sc_session_flush(&conversation->session, &ignored);
    sc_session_close(&conversation->session, true);
    conversation->has_session = false;
}

static int current_session(sc_conversation *conversation, sc_error *error) {
    if (conversation->has_session &&
        !sc_watch_is_newer_than(conversation->client.watch, conversation->epoch, false))
        return STREAM_OK;
    return sc_renewal_session(conversation, error);
}

/* Take notice of the end of the study, if a server rank has told of it. */
static void notice_end(sc_conversation *conversation) {
    const char *reason;
    if (!conversation->has_session || !sc_session_has_stopped(&conversation->session, &reason))
        return;
    conversation->has_stopped = true;
    free(conversation->stop_reason);
    conversation->stop_reason = reason == NULL ? NULL : strdup(reason);
}

/* Have a step unsent, the last of them. */
static int retain(sc_conversation *conversation, int64_t index, uint64_t present, const void *const arrays[],
                  sc_error *error) {
    sc_client *client = &conversation->client;
    sc_steps steps;
    int code = sc_steps_begin(&steps, client->pool, &client->layout, present, 1, error);
    if (code != STREAM_OK)
        return code;
    steps.index = index;
    steps.stride = 1;
    sc_steps_add(&steps, &client->layout, arrays);
    return sc_retention_keep(&client->retention, &steps, error);
}

double sc_conversation_longest_wait_s(const sc_conversation *conversation, const sc_data_connection *connection) {
    bool may_keep = conversation->client.num_ranks > 1 && conversation->num_released < connection->credit;
    return may_keep ? SC_RELEASE_S : INFINITY;
}

/* Let the simulation go on although its step has to wait. */
static int release(sc_conversation *conversation, int64_t index, uint64_t present, const void *const arrays[],
                   sc_error *error) {
    ++conversation->num_released;
    conversation->has_sent = true;
    return retain(conversation, index, present, arrays, error);
}

static int send_now(sc_conversation *conversation, int64_t index, uint64_t present, const void *const arrays[],
                    sc_error *error) {
    int code = STREAM_OK;
    if (!conversation->has_session || conversation->has_sent)
        code = current_session(conversation, error);
    if (code != STREAM_OK)
        return code;
    sc_data_connection *connection = sc_session_connection(&conversation->session, index);
    bool is_wanted = present != 0 && !sc_bits_has(&connection->known, index), may_go, ignored = false;
    code = sc_renewal_send_unsent(conversation, is_wanted ? INFINITY : 0, &may_go, error);
    if (code == STREAM_OK && may_go && is_wanted)
        code = sc_session_wait_for_room(&conversation->session, connection,
                                        sc_conversation_longest_wait_s(conversation, connection), &may_go, error);
    if (code != STREAM_OK)
        return code;
    if (sc_data_connection_is_lost(connection))
        return SC_OVER;
    /* From here on the step belongs to what a new server has to have. */
    int is_new = sc_entered_add(&conversation->entered, index);
    if (is_new < 0)
        return sc_no_memory(error);
    connection->num_steps += is_new;
    if (!is_wanted)
        code = sc_data_connection_take_answers(connection, &ignored, error);
    else if (may_go)
        code = sc_data_connection_send(connection, index, present, arrays, &conversation->has_sent, error);
    else if (is_new > 0)
        code = release(conversation, index, present, arrays, error);
    if (code == STREAM_OK && connection->has_stopped)
        notice_end(conversation);
    return code;
}

int sc_conversation_send(sc_conversation *conversation, int64_t index, uint64_t present, const void *const arrays[],
                         sc_error *error) {
    while (!conversation->has_stopped) {
        int code = send_now(conversation, index, present, arrays, error);
        if (code == SC_OVER)
            sc_conversation_close(conversation);
        else if (code == SC_ENDED)
            notice_end(conversation);
        else
            return code;
    }
    return STREAM_OK;
}

int sc_conversation_finish(sc_conversation *conversation, sc_error *error) {
    while (!conversation->has_stopped) {
        bool is_done = false;
        int code = current_session(conversation, error);
        while (code == STREAM_OK && !is_done)
            code = sc_renewal_send_unsent(conversation, INFINITY, &is_done, error);
        if (code == STREAM_OK)
            code = sc_session_end(&conversation->session, error);
        if (code == SC_OVER)
            sc_conversation_close(conversation);
        else if (code == SC_ENDED)
            notice_end(conversation);
        else
            return code;
    }
    return STREAM_OK;
}

int sc_conversation_interrupt(sc_conversation *conversation, sc_error *error) {
    int code = sc_renewal_set_aside(conversation, error);
    conversation->client.retention.unsent_may_go = true;
    return code;
}

int sc_conversation_keep(sc_conversation *conversation, int64_t index, uint64_t present, const void *const arrays[],
                         sc_error *error) {
    int is_new = sc_entered_add(&conversation->entered, index);
    if (is_new < 0)
        return sc_no_memory(error);
    return is_new == 0 || present == 0 ? STREAM_OK : retain(conversation, index, present, arrays, error);
}

bool sc_conversation_may_resume(sc_conversation *conversation, bool look_now) {
    return sc_watch_is_newer_than(conversation->client.watch, conversation->epoch, look_now);
}
