#include "renewal.h"

#include "control.h"

int sc_renewal_set_aside(sc_conversation *conversation, sc_error *error) {
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
    conversation->epoch = sc_epoch_of(&conversation->client.watch->file, conversation->welcome);
    return STREAM_OK;
}

static int say_hello(sc_conversation *conversation, sc_error *error) {
    const sc_client *client = &conversation->client;
    /* A server that does not even answer is not tried again, only the next one. */
    conversation->epoch = client->watch->file.epoch;
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
                   "the study went back to its last checkpoint, where %zu time steps of %s are missing which this "
                   "process no longer holds (client.window is %g MiB): a new attempt will produce them",
                   num, conversation->client.who, (double)conversation->welcome->window_bytes / 1048576);
}

/* A step is known. All that a new server knows is in a checkpoint; what the same one knows is kept until it is. */
static int take_as_known(sc_conversation *conversation, sc_unsent *unsent, bool is_new, sc_error *error) {
    sc_data_connection *connection = sc_session_connection(&conversation->session, unsent->index);
    int code = is_new ? STREAM_OK : sc_data_connection_keep(connection, unsent, error);
    sc_retention_forget(&conversation->client.retention, unsent);
    return code;
}

/* Count each step for its new server rank, and have only those unsent that are not known there. */
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
        ++connection->num_steps;
        if (next < retention->end_unsent && retention->unsent[next].index == index) {
            if (is_known)
                code = take_as_known(conversation, &retention->unsent[next], is_new, error);
            ++next;
        } else if (!is_known) {
            ++num_lost;
        }
    }
    sc_retention_close_up(retention);
    if (code != STREAM_OK)
        return code;
    return num_lost > 0 && conversation->client.num_blocks > 0 ? steps_lost(conversation, num_lost, error) : STREAM_OK;
}

int sc_renewal_send_unsent(sc_conversation *conversation, double most_s, bool *is_done, sc_error *error) {
    sc_retention *retention = &conversation->client.retention;
    *is_done = true;
    for (sc_unsent *first; (first = sc_retention_first(retention)) != NULL;) {
        const void *arrays[SC_MAX_FIELDS];
        bool ignored;
        sc_data_connection *connection = sc_session_connection(&conversation->session, first->index);
        double longest_s = sc_conversation_longest_wait_s(conversation, connection);
        int code = sc_session_wait_for_room(&conversation->session, connection, most_s < longest_s ? most_s : longest_s,
                                            is_done, error);
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
    int code = sc_renewal_set_aside(conversation, error);
    bool is_new = code == STREAM_OK && sc_watch_is_newer_than(conversation->client.watch, conversation->epoch, false);
    if (is_new)
        code = say_hello(conversation, error);
    if (code != STREAM_OK)
        return code;
    conversation->has_session = true;
    code = sc_session_open(&conversation->session, &conversation->client, conversation->welcome, error);
    return code == STREAM_OK ? account(conversation, is_new, error) : code;
}

int sc_renewal_session(sc_conversation *conversation, sc_error *error) {
    int code;
    do
        code = begin_session(conversation, error);
    while (code == SC_OVER);
    return code;
}
