/* A library to preload, below which the file system has no locks and syncs no folders. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <sys/stat.h>

int flock(int file, int operation) {
    (void)file, (void)operation;
    errno = ENOSYS;
    return -1;
}

int fsync(int file) {
    struct stat status;
    if (fstat(file, &status) == 0 && S_ISDIR(status.st_mode)) {
        errno = EINVAL;
        return -1;
    }
    return ((int (*)(int))dlsym(RTLD_NEXT, "fsync"))(file);
}
