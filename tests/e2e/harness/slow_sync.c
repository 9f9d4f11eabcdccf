// Makes fsync, fdatasync and rename of paths below $SLOW_DIR wait as long as $SLOW_FILE exists. For LD_PRELOAD.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void wait_for(const char *path) {
    const char *dir = getenv("SLOW_DIR"), *file = getenv("SLOW_FILE");
    if (!dir || !file || strncmp(path, dir, strlen(dir)) != 0)
        return;
    while (access(file, F_OK) == 0)
        usleep(10000);
}

static void wait_for_fd(int fd) {
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t len = readlink(link, path, sizeof path - 1);
    if (len < 0)
        return;
    path[len] = 0;
    wait_for(path);
}

int fsync(int fd) {
    static int (*real)(int);
    if (!real)
        real = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
    wait_for_fd(fd);
    return real(fd);
}

int fdatasync(int fd) {
    static int (*real)(int);
    if (!real)
        real = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
    wait_for_fd(fd);
    return real(fd);
}

int rename(const char *from, const char *to) {
    static int (*real)(const char *, const char *);
    if (!real)
        real = (int (*)(const char *, const char *))dlsym(RTLD_NEXT, "rename");
    wait_for(to);
    return real(from, to);
}
