#define _POSIX_C_SOURCE 200809L
#include "conversation.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "control.h"
#include "text.h"

#ifndef SC_RELEASE_S
#define SC_RELEASE_S 1.0
#endif

void sc_conversation_begin(sc_conversation *conversation, const sc_client *client, const sc_hello *hello,
                           const sc_welcome *welcome) {
    *conversation = (sc_conversation){.client = *client, .hello = hello, .welcome = welcome};
    conversation->incarnation = sc_incarnation_of(&client->watch->file, welcome);
    conversation->client.layout = sc_layout_of(client->blocks, client->num_blocks);
    conversation->client.statics.layout = sc_layout_of(client->statics.blocks, client->statics.num);
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

/* Leave the server, if there is one, with all that it may not have. */
static int set_aside(sc_conversation *conversation, sc_error *error) {
    sc_conversation_close(conversation);
    conversation->client.retention.unsent_may_go = false;
    return sc_retention_set_aside(&conversation->client.retention, &conversation->entered, error);
}

/* Take what a new server said to Hello; it may be freed as an answer afterwards. */
static int take_answer(sc_conversation *conversation, sc_reply *answer, sc_error *error) {
    if (answer->kind == SC_STOPPED) {
        conversation->has_stopped = true;
        conversation->stop_reason = answer->stop_text;
        answer->stop_text = NULL;
        return SC_ENDED;
    }
    if (answer->kind != SC_WELCOME)
        return sc_fail(error, STREAM_ERROR_REFUSED,
                       "%s cannot go on in study %.200s, which was started again: %s", conversation->client.who,
                       conversation->welcome->study, sc_answer_text(answer));
    sc_welcome_free(&conversation->own_welcome);
    conversation->own_welcome = answer->welcome;
    answer->welcome = (sc_welcome){.num_steps = -1};
    conversation->welcome = &conversation->own_welcome;
    conversation->incarnation = sc_incarnation_of(&conversation->client.watch->file, conversation->welcome);
    return STREAM_OK;
}

static int say_hello(sc_conversation *conversation, sc_error *error) {
    const sc_client *client = &conversation->client;
    /* A server that does not even answer is not tried again, only the next one. */
    conversation->incarnation = client->watch->file.incarnation;
    sc_asker asker = {client->context, client->watch, client->who, client->silence_s};
    sc_message hello = sc_encode_hello(conversation->hello);
    sc_reply answer;
    int code = sc_ask(&asker, &hello, &answer, error);
    sc_message_free(&hello);
    if (code != STREAM_OK)
        return code;
    code = take_answer(conversation, &answer, error);
    sc_reply_free(&answer);
    return code;
}

static int steps_lost(sc_conversation *conversation, size_t num, sc_error *error) {
    sc_retention_forget_all(&conversation->client.retention);
    return sc_fail(error, STREAM_ERROR_STEPS_LOST,
                   "the study went back to its last checkpoint, which lacks %zu time step%s of %s that this process no "
                   "longer holds (client.window is %g MiB): a new attempt will produce them",
                   num, num == 1 ? "" : "s", conversation->client.who, (double)conversation->welcome->window_bytes / 1048576);
}

/* Count each step for its new server rank, and have only those unsent that it does not know. */
static int account(sc_conversation *conversation, bool is_new, sc_error *error) {
    sc_retention *retention = &conversation->client.retention;
    const sc_entered *entered = &conversation->entered;
    size_t num_lost = 0, next = retention->first_unsent;
    int code = STREAM_OK;
    /* The other ranks have to find the new server, too. */
    conversation->num_released = 0;
    /* The unsent steps are in the order of all steps. */
    for (size_t i = 0; i < entered->num && code == STREAM_OK; ++i) {
        int64_t index = entered->order[i];
        sc_data_connection *connection = sc_session_connection(&conversation->session, index);
        bool is_known = sc_bits_has(&connection->known, index);
        bool is_unsent = next < retention->end_unsent && retention->unsent[next].index == index;
        sc_unsent *unsent = is_unsent ? &retention->unsent[next++] : NULL;
        ++connection->num_steps;
        if (is_known && is_unsent) {
            /* All that a new server knows is in a checkpoint. */
            if (!is_new)
                code = sc_data_connection_keep(connection, unsent, error);
            sc_retention_forget(retention, unsent);
        }
        num_lost += !is_known && !is_unsent;
    }
    sc_retention_close_up(retention);
    if (code != STREAM_OK)
        return code;
    return num_lost > 0 && conversation->client.num_blocks > 0 ? steps_lost(conversation, num_lost, error) : STREAM_OK;
}

/* Wait for credit, for most_s or what it may; *has_room says whether there is some. */
static int wait_for_room(sc_conversation *conversation, sc_data_connection *connection, double most_s, bool *has_room,
                         sc_error *error) {
    double longest_s = sc_conversation_longest_wait_s(conversation, connection);
    return sc_session_wait_for_room(&conversation->session, connection, most_s < longest_s ? most_s : longest_s,
                                    has_room, error);
}

/* Send what no connection has, each step once there is room, for which it waits for most_s or what it may; *is_done says
 * whether none had to wait for that long. */
static int send_unsent(sc_conversation *conversation, double most_s, bool *is_done, sc_error *error) {
    sc_retention *retention = &conversation->client.retention;
    *is_done = true;
    for (sc_unsent *first; (first = sc_retention_first(retention)) != NULL;) {
        sc_slice arrays[SC_MAX_FIELDS];
        bool ignored;
        sc_data_connection *connection = sc_session_connection(&conversation->session, first->index);
        int code = wait_for_room(conversation, connection, most_s, is_done, error);
        if (code != STREAM_OK || !*is_done)
            return code;
        sc_steps_arrays(&first->steps, &conversation->client.layout, first->row, arrays);
        code = sc_data_connection_send(connection, first->index, first->steps.present, arrays, &ignored, error);
        if (code != STREAM_OK)
            return code;
        sc_retention_forget_first(retention);
        /* The steps that were released are the last of them. */
        size_t num_unsent = retention->end_unsent - retention->first_unsent;
        if (conversation->num_released > (int64_t)num_unsent)
            conversation->num_released = (int64_t)num_unsent;
    }
    return STREAM_OK;
}

static int begin_session(sc_conversation *conversation, sc_error *error) {
    int code = set_aside(conversation, error);
    bool is_new = code == STREAM_OK && sc_watch_is_newer_than(conversation->client.watch, conversation->incarnation, false);
    if (is_new)
        code = say_hello(conversation, error);
    if (code != STREAM_OK)
        return code;
    conversation->has_session = true;
    code = sc_session_open(&conversation->session, &conversation->client, conversation->welcome, error);
    return code == STREAM_OK ? account(conversation, is_new, error) : code;
}

/* Open a session with the newest server; what it does not know of what was sent before is unsent then. */
static int begin_sessions(sc_conversation *conversation, sc_error *error) {
    int code;
    do
        code = begin_session(conversation, error);
    while (code == SC_OVER);
    return code;
}

static int current_session(sc_conversation *conversation, sc_error *error) {
    if (conversation->has_session &&
        !sc_watch_is_newer_than(conversation->client.watch, conversation->incarnation, false))
        return STREAM_OK;
    return begin_sessions(conversation, error);
}

/* Take notice of the end of the study, if a server rank has told of it. */
static void notice_end(sc_conversation *conversation) {
    const char *reason;
    if (!conversation->has_session || !sc_session_has_stopped(&conversation->session, &reason))
        return;
    conversation->has_stopped = true;
    free(conversation->stop_reason);
    conversation->stop_reason = reason == NULL ? NULL : sc_copy_text(reason);
}

/* Retain a step as unsent, the last of them. */
static int retain(sc_conversation *conversation, int64_t index, uint64_t present, const sc_slice arrays[],
                  sc_error *error) {
    sc_client *client = &conversation->client;
    sc_steps steps;
    int code = sc_steps_single(&steps, client->pool, &client->layout, present, arrays, error);
    if (code != STREAM_OK)
        return code;
    steps.index = index;
    steps.stride = 1;
    return sc_retention_keep(&client->retention, &steps, error);
}

double sc_conversation_longest_wait_s(const sc_conversation *conversation, const sc_data_connection *connection) {
    bool may_keep = conversation->client.num_ranks > 1 && conversation->num_released < connection->credit;
    return may_keep ? SC_RELEASE_S : INFINITY;
}

/* Let the simulation go on although its step has to wait. */
static int release(sc_conversation *conversation, int64_t index, uint64_t present, const sc_slice arrays[],
                   sc_error *error) {
    ++conversation->num_released;
    conversation->has_sent = true;
    return retain(conversation, index, present, arrays, error);
}

static int send_now(sc_conversation *conversation, int64_t index, uint64_t present, const sc_slice arrays[],
                    sc_error *error) {
    int code = STREAM_OK;
    if (!conversation->has_session || conversation->has_sent)
        code = current_session(conversation, error);
    if (code != STREAM_OK)
        return code;
    sc_data_connection *connection = sc_session_connection(&conversation->session, index);
    bool is_wanted = present != 0 && !sc_bits_has(&connection->known, index), may_go, ignored = false;
    code = send_unsent(conversation, is_wanted ? INFINITY : 0, &may_go, error);
    if (code == STREAM_OK && may_go && is_wanted)
        code = wait_for_room(conversation, connection, INFINITY, &may_go, error);
    if (code == STREAM_OK && sc_data_connection_is_lost(connection))
        code = SC_OVER;
    if (code != STREAM_OK)
        return code;
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

int sc_conversation_send(sc_conversation *conversation, int64_t index, uint64_t present, const sc_slice arrays[],
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
            code = send_unsent(conversation, INFINITY, &is_done, error);
        if (code == STREAM_OK)
            code = sc_session_end(&conversation->session, (int64_t)conversation->entered.num, error);
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
    int code = set_aside(conversation, error);
    conversation->client.retention.unsent_may_go = true;
    return code;
}

int sc_conversation_keep(sc_conversation *conversation, int64_t index, uint64_t present, const sc_slice arrays[],
                         sc_error *error) {
    int is_new = sc_entered_add(&conversation->entered, index);
    if (is_new < 0)
        return sc_no_memory(error);
    return is_new == 0 || present == 0 ? STREAM_OK : retain(conversation, index, present, arrays, error);
}

bool sc_conversation_may_resume(sc_conversation *conversation, bool look_now) {
    return sc_watch_is_newer_than(conversation->client.watch, conversation->incarnation, look_now);
}
