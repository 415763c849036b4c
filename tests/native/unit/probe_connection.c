/* Reads connection files. */
#include "check.h"
#include "connection_file.h"
#include "words.h"

static void say_file(const sc_connection_file *it) {
    say_word("file");
    say_text(it->study);
    say_number(it->incarnation);
    say_text(it->host);
    say_number(it->control.num);
    for (int i = 0; i < it->control.num; ++i)
        say_text(it->control.addresses[i]);
    say_number(it->simulation);
    say_number(it->attempt);
    say_number(it->has_parameters);
    say_number(it->parameters.num);
    for (int i = 0; i < it->parameters.num; ++i) {
        say_text(it->parameters.names[i]);
        say_double(it->parameters.values[i]);
    }
    say_number(it->is_encrypted);
    say_text(it->server_public_key);
    say_text(it->client_public_key);
    say_text(it->client_secret_key);
}

static void answer(int status, sc_connection_file *file, const sc_error *error) {
    if (status == STREAM_OK) {
        say_file(file);
        sc_connection_file_free(file);
        return;
    }
    CHECK(status == STREAM_ERROR_CONNECTION_FILE && error->code == status);
    say_word("refused");
    say_text(error->text);
}

int main(void) {
    while (next_line()) {
        sc_connection_file file;
        sc_error error;
        size_t num_bytes;
        bool is_path = next_word_is("read");
        CHECK(is_path || next_word_is("parse"));
        char *bytes = next_bytes(&num_bytes);
        if (is_path)
            answer(sc_connection_file_read(bytes, &file, &error), &file, &error);
        else
            answer(sc_connection_file_parse(bytes, num_bytes, "FILE", &file, &error), &file, &error);
        free(bytes);
        end_answer();
    }
    return 0;
}
