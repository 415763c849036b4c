#define _POSIX_C_SOURCE 200809L
#include "address.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static bool begins_with(const char *text, const char *beginning) {
    return strncmp(text, beginning, strlen(beginning)) == 0;
}

static bool is_there(const char *address) {
    const char *path = begins_with(address, "ipc://") ? address + strlen("ipc://") : address;
    return access(path, F_OK) == 0;
}

const char *sc_usable_address(const sc_addresses *addresses, bool is_same_node) {
    for (int i = 0; i < addresses->num; ++i) {
        const char *address = addresses->addresses[i];
        if (begins_with(address, "tcp:") || (is_same_node && is_there(address)))
            return address;
    }
    return is_same_node && addresses->num > 0 ? addresses->addresses[0] : NULL;
}

void sc_node_name(char name[256]) {
    if (gethostname(name, 256) != 0)
        name[0] = '\0';
    name[255] = '\0';
}

bool sc_is_this_node(const char *host) {
    char name[256];
    sc_node_name(name);
    return strcmp(name, host) == 0;
}

void sc_join_addresses(char *text, size_t num_bytes, const sc_addresses *addresses, const char *between) {
    size_t at = 0;
    text[0] = '\0';
    for (int i = 0; i < addresses->num && at < num_bytes; ++i) {
        int num = snprintf(text + at, num_bytes - at, "%s%s", i == 0 ? "" : between, addresses->addresses[i]);
        at += num < 0 ? 0 : (size_t)num;
    }
}
