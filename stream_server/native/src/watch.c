#define _POSIX_C_SOURCE 200809L
#include "watch.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "silence_timer.h"
#include "text.h"

#ifndef SC_LOOK_S
#define SC_LOOK_S 0.5
#endif

static char *joined(const char *folder, const char *path) {
    size_t num_bytes = strlen(folder) + strlen(path) + 2;
    char *whole = malloc(num_bytes);
    if (whole != NULL) {
        strcpy(whole, folder);
        strcat(whole, "/");
        strcat(whole, path);
    }
    return whole;
}

/* NULL: no memory, or the folder is gone. */
static char *absolute(const char *path) {
    if (path[0] == '/')
        return sc_copy_text(path);
    char *folder = getcwd(NULL, 0);
    char *whole = folder == NULL ? NULL : joined(folder, path);
    free(folder);
    return whole;
}

int sc_watch_open(sc_watch *watch, const char *path, sc_error *error) {
    memset(watch, 0, sizeof *watch);
    int code = sc_connection_file_read(path, &watch->file, error);
    if (code != STREAM_OK)
        return code;
    watch->path = absolute(path);
    watch->next_look = sc_now() + SC_LOOK_S;
    if (watch->path == NULL) {
        sc_connection_file_free(&watch->file);
        return sc_no_memory(error);
    }
    return STREAM_OK;
}

void sc_watch_close(sc_watch *watch) {
    if (watch->path != NULL)
        sc_connection_file_free(&watch->file);
    free(watch->path);
    watch->path = NULL;
}

static void look(sc_watch *watch) {
    struct stat status;
    if (stat(watch->path, &status) != 0)
        return;
    uint64_t state[4] = {(uint64_t)status.st_ino, (uint64_t)status.st_mtim.tv_sec, (uint64_t)status.st_mtim.tv_nsec,
                         (uint64_t)status.st_size};
    if (watch->has_read && memcmp(state, watch->read_state, sizeof state) == 0)
        return;
    sc_connection_file file;
    sc_error ignored;
    /* Gone, or no connection file, at this moment: the next look tells. */
    if (sc_connection_file_read(watch->path, &file, &ignored) != STREAM_OK)
        return;
    watch->is_touched = watch->has_read;
    watch->has_read = true;
    memcpy(watch->read_state, state, sizeof state);
    if (file.incarnation <= watch->file.incarnation) {
        sc_connection_file_free(&file);
        return;
    }
    sc_connection_file_free(&watch->file);
    watch->file = file;
}

bool sc_watch_is_newer_than(sc_watch *watch, uint32_t incarnation, bool look_now) {
    double now = sc_now();
    if (look_now || now >= watch->next_look) {
        watch->next_look = now + SC_LOOK_S;
        look(watch);
    }
    return watch->file.incarnation > incarnation;
}

bool sc_watch_was_touched(sc_watch *watch) {
    bool is_touched = watch->is_touched;
    watch->is_touched = false;
    return is_touched && !watch->ignores_touches;
}

double sc_watch_slice_s(const sc_watch *watch) {
    double slice_s = watch->next_look - sc_now();
    return slice_s > 0 ? slice_s : 0;
}
