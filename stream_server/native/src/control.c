#include "control.h"

#include "address.h"
#include "silence_timer.h"
#include "text.h"
#include "transport.h"

#ifndef SC_REPEAT_S
#define SC_REPEAT_S 1.0
#endif


static bool is_refusal(const sc_reply *answer, int reason) {
    return answer->kind == SC_REFUSAL && answer->refusal.reason == reason;
}

/* Read what has come; *is_answered says whether an answer was among it. A new server at an old address is no one to
 * talk to: it is waited for until the connection file tells of it. */
static int hear(sc_dealer *dealer, sc_silence_timer *silence, bool *is_answered, sc_reply *answer, sc_error *error) {
    for (;;) {
        bool is_there;
        int code = sc_dealer_receive(dealer, &is_there, answer, error);
        if (code != STREAM_OK || !is_there)
            return code;
        bool is_stale = is_refusal(answer, SC_STALE_INCARNATION);
        if (!is_stale)
            sc_silence_timer_heard(silence);
        if (!is_stale && !is_refusal(answer, SC_BUSY)) {
            *is_answered = true;
            return STREAM_OK;
        }
        sc_reply_free(answer);
    }
}

/* Note whether the server refuses the keys of this connection; it is given up where it still does after a while. */
static int heed_refusal(const sc_asker *asker, const sc_dealer *dealer, sc_silence_timer *silence, sc_error *error) {
    if (!sc_dealer_is_refused(dealer) || !sc_silence_timer_refused(silence))
        return STREAM_OK;
    return sc_fail(error, STREAM_ERROR_REFUSED,
                   "%s is not let into study %.200s at %s: the server does not know the key in the connection file, or "
                   "wants one and there is none. Is the file the newest, and is there no newer attempt?",
                   asker->who, asker->watch->file.study, dealer->address);
}

/* Ask until there is an answer, or none came in time, the connection was lost, or there is a newer connection file. */
static int ask_here(const sc_asker *asker, sc_transport *transport, const char *name, const sc_message *question,
                    sc_silence_timer *silence, bool *is_answered, sc_reply *answer, sc_error *error) {
    sc_watch *watch = asker->watch;
    uint32_t incarnation = watch->file.incarnation;
    int code = sc_transport_connect(transport, &watch->file.control, name, true, error);
    if (code != STREAM_OK)
        return code;
    sc_dealer *dealer = &transport->dealers[0];
    code = sc_dealer_send(dealer, question, error);
    while (code == STREAM_OK && !dealer->is_lost && !sc_silence_timer_is_over(silence)) {
        if (sc_watch_is_newer_than(watch, incarnation, false)) {
            sc_silence_timer_heard(silence);
            return STREAM_OK;
        }
        if (sc_watch_was_touched(watch))
            sc_silence_timer_heard(silence);
        double slice_s = sc_silence_timer_slice_s(silence), look_s = sc_watch_slice_s(watch);
        double most_s = slice_s < look_s ? slice_s : look_s;
        code = sc_transport_wait(transport, most_s, error);
        sc_silence_timer_listened(silence, most_s);
        if (code == STREAM_OK)
            code = hear(dealer, silence, is_answered, answer, error);
        if (code == STREAM_OK && !*is_answered)
            code = heed_refusal(asker, dealer, silence, error);
        if (code != STREAM_OK || *is_answered)
            return code;
        if (!sc_silence_timer_may_repeat(silence))
            continue;
        if (sc_dealer_is_refused(dealer))
            return STREAM_OK;
        code = sc_dealer_send(dealer, question, error);
    }
    return code;
}

static int unreachable(const sc_asker *asker, sc_error *error) {
    const sc_connection_file *file = &asker->watch->file;
    char places[SC_ERROR_BYTES / 4], unreached[SC_UNREACHED_BYTES] = "";
    sc_join_addresses(places, sizeof places, &file->control, " and ");
    if (!sc_is_this_node(file->host))
        sc_unreached(unreached);
    return sc_fail(error, STREAM_ERROR_UNREACHABLE,
                   "%s waits for study %.200s at %s: no word for %g s. Is the study still running, and is the "
                   "connection file its newest?%s",
                   asker->who, file->study, places, asker->timeout_s, unreached);
}

int sc_ask(const sc_asker *asker, const sc_message *question, sc_reply *answer, sc_error *error) {
    sc_silence_timer silence = sc_silence_timer_begin(asker->timeout_s, SC_REPEAT_S, 0);
    /* A client whose answer was lost is given the same again. */
    char name[SC_NAME_BYTES];
    sc_new_name(name);
    for (;;) {
        sc_transport transport;
        bool is_answered = false;
        int code = sc_transport_open(&transport, asker->context, &asker->watch->file, 1, error);
        if (code != STREAM_OK)
            return code;
        code = ask_here(asker, &transport, name, question, &silence, &is_answered, answer, error);
        sc_transport_close(&transport, false);
        if (code != STREAM_OK || is_answered)
            return code;
        if (sc_silence_timer_is_over(&silence))
            return unreachable(asker, error);
    }
}

const char *sc_answer_text(const sc_reply *answer) {
    switch (answer->kind) {
    case SC_STOPPED:
        return answer->stop_text;
    case SC_REFUSAL:
        return answer->refusal.text;
    default:
        return "the server answered something else";
    }
}
