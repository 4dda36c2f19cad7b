/* Preloaded into a process: records what it does to the files under $DISK_ROOT, in order, into $DISK_RECORD.
 *
 * A record is a head of five 64-bit words (kind, file, offset or size, bytes that follow, nanoseconds) and
 * bytes: the data of a write, or one or two paths, each with its NUL. `disk.py` reads it and says what a disk
 * would hold that had lost its power at a moment. One lock orders what is done and its record; a sync holds it
 * only while it is recorded that it begins and that it has ended well.
 *
 * With $DISK_SYNC_MS, an fdatasync takes so many milliseconds more, and an fsync a tenth of them.
 * With $CLOCK_OFFSET, a file with a number of seconds, the wall clock is ahead by it.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { MAKE = 1, WRITE, CUT, RENAME, REMOVE, FOLDER, LINK, SYNC, SYNCED };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static const char *root;
static size_t root_length;
static int record_fd = -1;

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static int (*real_openat)(int, const char *, int, ...);
static ssize_t (*real_write)(int, const void *, size_t);
static ssize_t (*real_pwrite)(int, const void *, size_t, off_t);
static int (*real_ftruncate)(int, off_t);
static int (*real_fsync)(int), (*real_fdatasync)(int);
static int (*real_renameat)(int, const char *, int, const char *);
static int (*real_unlinkat)(int, const char *, int);
static int (*real_mkdirat)(int, const char *, mode_t);
static int (*real_linkat)(int, const char *, int, const char *, int);
static int (*real_clock_gettime)(clockid_t, struct timespec *);

__attribute__((constructor)) static void begin(void) {
    real_openat = REAL(openat);
    real_write = REAL(write);
    real_pwrite = REAL(pwrite);
    real_ftruncate = REAL(ftruncate);
    real_fsync = REAL(fsync);
    real_fdatasync = REAL(fdatasync);
    real_renameat = REAL(renameat);
    real_unlinkat = REAL(unlinkat);
    real_mkdirat = REAL(mkdirat);
    real_linkat = REAL(linkat);
    real_clock_gettime = REAL(clock_gettime);
    const char *path = getenv("DISK_RECORD");
    root = getenv("DISK_ROOT");
    if (path == NULL || root == NULL) {
        root = NULL;
        return;
    }
    root_length = strlen(root);
    record_fd = real_openat(AT_FDCWD, path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (record_fd < 0) abort();
    int high = fcntl(record_fd, F_DUPFD_CLOEXEC, 500);
    if (high >= 0) close(record_fd), record_fd = high;
}

static void record(uint64_t kind, uint64_t file, uint64_t at, const void *bytes, uint64_t length,
                   const void *more, uint64_t more_length) {
    struct timespec now;
    int before = errno;
    clock_gettime(CLOCK_MONOTONIC, &now);
    uint64_t head[5] = {kind, file, at, length + more_length,
                        (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec};
    struct iovec parts[3] = {{head, sizeof head}, {(void *)bytes, length}, {(void *)more, more_length}};
    if (writev(record_fd, parts, 3) != (ssize_t)(sizeof head + length + more_length)) abort();
    errno = before;
}

static int is_under_root(const char *path) {
    return strncmp(path, root, root_length) == 0 && (path[root_length] == '/' || path[root_length] == 0);
}

/* The absolute path of what a call names, if it lies under the root; else NULL. */
static const char *resolve(int folder, const char *path, char *found) {
    if (root == NULL) return NULL;
    if (path[0] == '/') {
        snprintf(found, PATH_MAX, "%s", path);
    } else {
        char base[PATH_MAX], link[64];
        if (folder == AT_FDCWD) {
            if (getcwd(base, sizeof base) == NULL) return NULL;
        } else {
            snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
            ssize_t length = readlink(link, base, sizeof base - 1);
            if (length < 0) return NULL;
            base[length] = 0;
        }
        if (snprintf(found, PATH_MAX, "%s/%s", base, path) >= PATH_MAX) return NULL;
    }
    return is_under_root(found) ? found : NULL;
}

/* The number of a file or folder under the root, 0 of what lies elsewhere. */
static uint64_t file_of(int fd) {
    char link[64], path[PATH_MAX];
    struct stat status;
    if (root == NULL || fstat(fd, &status) != 0) return 0;
    if (!S_ISREG(status.st_mode) && !S_ISDIR(status.st_mode)) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return is_under_root(path) ? status.st_ino : 0;
}

static int do_open(int folder, const char *path, int flags, mode_t mode) {
    char found[PATH_MAX];
    struct stat status;
    if ((flags & (O_CREAT | O_TRUNC)) == 0 || (flags & O_TMPFILE) == O_TMPFILE || !resolve(folder, path, found))
        return real_openat(folder, path, flags, mode);
    pthread_mutex_lock(&lock);
    int is_there = fstatat(AT_FDCWD, found, &status, 0) == 0;
    int fd = real_openat(folder, path, flags, mode);
    if (fd >= 0 && fstat(fd, &status) == 0 && S_ISREG(status.st_mode)) {
        if (!is_there)
            record(MAKE, status.st_ino, 0, found, strlen(found) + 1, NULL, 0);
        else if (flags & O_TRUNC)
            record(CUT, status.st_ino, 0, NULL, 0, NULL, 0);
    }
    pthread_mutex_unlock(&lock);
    return fd;
}

#define MODE_OF(flags, mode)                                \
    mode_t mode = 0;                                        \
    if (flags & (O_CREAT | O_TMPFILE)) {                    \
        va_list rest;                                       \
        va_start(rest, flags);                              \
        mode = (mode_t)va_arg(rest, int);                   \
        va_end(rest);                                       \
    }

int open(const char *path, int flags, ...) { MODE_OF(flags, mode) return do_open(AT_FDCWD, path, flags, mode); }
int open64(const char *path, int flags, ...) { MODE_OF(flags, mode) return do_open(AT_FDCWD, path, flags, mode); }
int openat(int folder, const char *path, int flags, ...) { MODE_OF(flags, mode) return do_open(folder, path, flags, mode); }
int openat64(int folder, const char *path, int flags, ...) { MODE_OF(flags, mode) return do_open(folder, path, flags, mode); }

ssize_t write(int fd, const void *data, size_t length) {
    uint64_t file = real_write != NULL && fd != record_fd ? file_of(fd) : 0;
    if (!file) return (real_write != NULL ? real_write : REAL(write))(fd, data, length);
    pthread_mutex_lock(&lock);
    ssize_t taken = real_write(fd, data, length);
    if (taken > 0) record(WRITE, file, (uint64_t)(lseek(fd, 0, SEEK_CUR) - taken), data, (uint64_t)taken, NULL, 0);
    pthread_mutex_unlock(&lock);
    return taken;
}

ssize_t pwrite(int fd, const void *data, size_t length, off_t at) {
    uint64_t file = file_of(fd);
    if (!file) return real_pwrite(fd, data, length, at);
    pthread_mutex_lock(&lock);
    ssize_t taken = real_pwrite(fd, data, length, at);
    if (taken > 0) record(WRITE, file, (uint64_t)at, data, (uint64_t)taken, NULL, 0);
    pthread_mutex_unlock(&lock);
    return taken;
}
ssize_t pwrite64(int fd, const void *data, size_t length, off_t at) { return pwrite(fd, data, length, at); }

int ftruncate(int fd, off_t size) {
    uint64_t file = file_of(fd);
    if (!file) return real_ftruncate(fd, size);
    pthread_mutex_lock(&lock);
    int result = real_ftruncate(fd, size);
    if (result == 0) record(CUT, file, (uint64_t)size, NULL, 0, NULL, 0);
    pthread_mutex_unlock(&lock);
    return result;
}
int ftruncate64(int fd, off_t size) { return ftruncate(fd, size); }

static int synced(int fd, int (*sync)(int), long parts) {
    uint64_t file = file_of(fd);
    if (!file) return sync(fd);
    pthread_mutex_lock(&lock);
    record(SYNC, file, (uint64_t)gettid(), NULL, 0, NULL, 0);
    pthread_mutex_unlock(&lock);
    const char *milliseconds = getenv("DISK_SYNC_MS");
    if (milliseconds != NULL) usleep((useconds_t)(strtol(milliseconds, NULL, 10) * 1000 / parts));
    int result = sync(fd);
    if (result != 0) return result;
    pthread_mutex_lock(&lock);
    record(SYNCED, file, (uint64_t)gettid(), NULL, 0, NULL, 0);
    pthread_mutex_unlock(&lock);
    return result;
}
int fsync(int fd) { return synced(fd, real_fsync, 10); }
int fdatasync(int fd) { return synced(fd, real_fdatasync, 1); }

int renameat(int from_folder, const char *from, int to_folder, const char *to) {
    char before[PATH_MAX], after[PATH_MAX];
    if (!resolve(from_folder, from, before) || !resolve(to_folder, to, after))
        return real_renameat(from_folder, from, to_folder, to);
    pthread_mutex_lock(&lock);
    int result = real_renameat(from_folder, from, to_folder, to);
    if (result == 0) record(RENAME, 0, 0, before, strlen(before) + 1, after, strlen(after) + 1);
    pthread_mutex_unlock(&lock);
    return result;
}
int rename(const char *from, const char *to) { return renameat(AT_FDCWD, from, AT_FDCWD, to); }

int unlinkat(int folder, const char *path, int flags) {
    char found[PATH_MAX];
    if (!resolve(folder, path, found)) return real_unlinkat(folder, path, flags);
    pthread_mutex_lock(&lock);
    int result = real_unlinkat(folder, path, flags);
    if (result == 0) record(REMOVE, 0, 0, found, strlen(found) + 1, NULL, 0);
    pthread_mutex_unlock(&lock);
    return result;
}
int unlink(const char *path) { return unlinkat(AT_FDCWD, path, 0); }
int rmdir(const char *path) { return unlinkat(AT_FDCWD, path, AT_REMOVEDIR); }

int mkdirat(int folder, const char *path, mode_t mode) {
    char found[PATH_MAX];
    struct stat status;
    if (!resolve(folder, path, found)) return real_mkdirat(folder, path, mode);
    pthread_mutex_lock(&lock);
    int result = real_mkdirat(folder, path, mode);
    if (result == 0 && stat(found, &status) == 0)
        record(FOLDER, status.st_ino, 0, found, strlen(found) + 1, NULL, 0);
    pthread_mutex_unlock(&lock);
    return result;
}
int mkdir(const char *path, mode_t mode) { return mkdirat(AT_FDCWD, path, mode); }

int linkat(int from_folder, const char *from, int to_folder, const char *to, int flags) {
    char before[PATH_MAX], after[PATH_MAX];
    if (!resolve(from_folder, from, before) || !resolve(to_folder, to, after))
        return real_linkat(from_folder, from, to_folder, to, flags);
    pthread_mutex_lock(&lock);
    int result = real_linkat(from_folder, from, to_folder, to, flags);
    if (result == 0) record(LINK, 0, 0, before, strlen(before) + 1, after, strlen(after) + 1);
    pthread_mutex_unlock(&lock);
    return result;
}
int link(const char *from, const char *to) { return linkat(AT_FDCWD, from, AT_FDCWD, to, 0); }

int clock_gettime(clockid_t clock, struct timespec *now) {
    int result = (real_clock_gettime != NULL ? real_clock_gettime : REAL(clock_gettime))(clock, now);
    const char *path = getenv("CLOCK_OFFSET");
    if (result != 0 || clock != CLOCK_REALTIME || path == NULL || real_openat == NULL) return result;
    char text[32] = {0};
    int fd = real_openat(AT_FDCWD, path, O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
        if (read(fd, text, sizeof text - 1) > 0) now->tv_sec += strtol(text, NULL, 10);
        close(fd);
    }
    return result;
}
