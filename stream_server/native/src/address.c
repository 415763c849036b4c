#define _POSIX_C_SOURCE 200809L
#include "address.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "text.h"

/* A path below a device: nobody can ever make it. */
#define UNREACHABLE "ipc:///dev/null/gone"

static bool begins_with(const char *text, const char *beginning) {
    return strncmp(text, beginning, strlen(beginning)) == 0;
}

static const char *path_of(const char *address) {
    return begins_with(address, "ipc://") ? address + strlen("ipc://") : address;
}

static const char *name_of(const char *address) {
    const char *slash = strrchr(path_of(address), '/');
    return slash == NULL ? path_of(address) : slash + 1;
}

static char *folder_of(const char *address) {
    const char *path = path_of(address);
    const char *slash = strrchr(path, '/');
    if (slash == NULL)
        return sc_copy_text(".");
    return strndup(path, slash == path ? 1 : (size_t)(slash - path));
}

int sc_open_ordinary(const char *path) {
    int descriptor;
    do
        descriptor = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    while (descriptor < 0 && errno == EINTR);
    struct stat status;
    if (descriptor < 0)
        return -1;
    bool is_known = fstat(descriptor, &status) == 0;
    if (is_known && S_ISREG(status.st_mode))
        return descriptor;
    close(descriptor);
    errno = is_known && S_ISDIR(status.st_mode) ? EISDIR : EINVAL;
    return -1;
}

int sc_open_folder(const char *address) {
    char *folder = folder_of(address);
    if (folder == NULL)
        return -1;
    int descriptor = open(folder, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    free(folder);
    struct stat status;
    if (descriptor < 0)
        return -1;
    if (fstat(descriptor, &status) == 0 && sc_is_ours(&status) && (status.st_mode & (S_IRWXG | S_IRWXO)) == 0)
        return descriptor;
    close(descriptor);
    return -1;
}

char *sc_way(const char *address, int folder) {
    if (folder < 0)
        return sc_copy_text(UNREACHABLE);
    size_t num_bytes = strlen(name_of(address)) + sizeof "ipc:///proc/self/fd//" + 16;
    char *way = malloc(num_bytes);
    if (way != NULL)
        snprintf(way, num_bytes, "ipc:///proc/self/fd/%d/%s", folder, name_of(address));
    return way;
}

static bool is_there(const char *address) {
    int folder = sc_open_folder(address);
    char *way = folder < 0 ? NULL : sc_way(address, folder);
    struct stat status;
    bool there = way != NULL && lstat(path_of(way), &status) == 0;
    free(way);
    if (folder >= 0)
        close(folder);
    return there;
}

bool sc_is_ours(const struct stat *status) {
    return status->st_uid == geteuid() || status->st_uid == 0;
}

const char *sc_usable_address(const sc_addresses *addresses, bool is_same_node) {
    for (int i = 0; i < addresses->num; ++i) {
        const char *address = addresses->addresses[i];
        if (begins_with(address, "tcp:") || (is_same_node && is_there(address)))
            return address;
    }
    return is_same_node && addresses->num > 0 ? addresses->addresses[0] : NULL;
}

bool sc_needs_ipv6(const char *address) {
    const char *start = address + strlen("tcp:");
    start += strspn(start, "/");
    const char *end = strrchr(start, ':');
    char host[256];
    if (end == NULL || (size_t)(end - start) >= sizeof host)
        return false;
    memcpy(host, start, (size_t)(end - start));
    host[end - start] = '\0';
    struct in_addr numeric;
    /* Of 127.0.0.1 a node without a network says that it has no address. */
    if (inet_pton(AF_INET, host, &numeric) == 1)
        return false;
    struct addrinfo wanted = {.ai_family = AF_INET, .ai_flags = AI_ADDRCONFIG}, *found;
    if (getaddrinfo(host, NULL, &wanted, &found) != 0)
        return true;
    freeaddrinfo(found);
    return false;
}

void sc_node_name(char name[256]) {
    if (gethostname(name, 256) != 0)
        name[0] = '\0';
    name[255] = '\0';
}

void sc_unreached(char text[SC_UNREACHED_BYTES]) {
    char node[256];
    sc_node_name(node);
    snprintf(text, SC_UNREACHED_BYTES,
             " Node %s may not reach that address: network.interface says by which interface or subnet nodes reach each "
             "other, network.ports which ports a firewall leaves open",
             node);
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
