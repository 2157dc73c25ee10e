#define _GNU_SOURCE
#include "state.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <link.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define FALLBACK_ROOT "/var/lib/fakefabric"
#define KERNEL_ROOT "/proc/driver/fakefabric" /* see state.KernelRoot */
#define PLUGIN_STATE "/run/nvidia-persistenced/socket" /* see state.PluginRoot */

/* One mapped file. A replaced mapping stays until the library is unloaded, since another thread may still be reading it. */
struct mapping {
	struct ff_header *header;
	size_t size;
	/* Taken from the header once it was found valid, since a file may be damaged later. */
	size_t body_offset, body_size;
	unsigned int gpu_count;
	int fd;
	bool writable;
	/* The file opened once more, by this process: forks share fd, and locks would end with the last of them. */
	int hold;
	pid_t holder;
	struct mapping *older;
};

static struct mapping *current;
/* Whether this process is an NVML client, and so keeps CLIENT_PLACE locked in whatever file is mapped. */
static bool client;
/* A byte far behind the end of the file; package state has the same. */
#define CLIENT_PLACE (UINT64_C(1) << 61)

static void hold_client(struct mapping *m);
static char state_path[PATH_MAX];
static bool machine; /* the driver is the machine's own, so its device nodes are in /dev */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* The directory that this library was loaded from, found without dladdr, whose symbol version would keep the library out of older images.
 */
static int find_self(struct dl_phdr_info *info, size_t size, void *out)
{
	(void)size;
	uintptr_t self = (uintptr_t)&find_self;
	for (int i = 0; i < info->dlpi_phnum; i++) {
		const ElfW(Phdr) *p = &info->dlpi_phdr[i];
		uintptr_t start = info->dlpi_addr + p->p_vaddr;
		if (p->p_type == PT_LOAD && self >= start && self < start + p->p_memsz) {
			if (info->dlpi_name && strlen(info->dlpi_name) < PATH_MAX)
				strcpy(out, info->dlpi_name);
			return 1;
		}
	}
	return 0;
}

static bool readable(const char *path)
{
	return access(path, R_OK) == 0;
}

static bool in_root(const char *root, char *path)
{
	if (snprintf(path, PATH_MAX, "%s/state/node", root) < PATH_MAX && readable(path))
		return true;
	path[0] = 0; /* a place that is remembered is not looked for again */
	return false;
}

/*
 * A library in ROOT/driver/usr/lib64 (or any directory three below ROOT) belongs to the node at ROOT. A pod that mounts the driver root
 * alone, under any name, has the state in it: DRIVER/state/node.
 */
static bool beside_self(char *path)
{
	char self[PATH_MAX] = "", absolute[PATH_MAX], driver[PATH_MAX] = "";
	dl_iterate_phdr(find_self, self);
	if (!self[0] || !realpath(self, absolute))
		return false;
	for (int up = 0; up < 4; up++) {
		char *slash = strrchr(absolute, '/');
		if (!slash)
			break;
		*slash = 0;
		if (up == 2)
			memcpy(driver, absolute, sizeof driver);
		if (up == 3 && in_root(absolute, path))
			return true;
	}
	return driver[0] && in_root(driver, path);
}

/*
 * The driver's files are those of the machine, or of a container, and its device nodes lie in /dev. Every client opens /dev/nvidiactl first
 * (open-gpu-kernel-modules, kernel-open/common/inc/nv-linux.h: NV_CONTROL_DEVICE_MINOR is 255), and is told that no driver is loaded where
 * it is not there. A container has the nodes that its runtime gave it when it was started.
 */
static bool control_node(void)
{
	struct stat node;
	return stat("/dev/nvidiactl", &node) == 0 && S_ISCHR(node.st_mode);
}

bool ff_library_version(char *version, size_t size)
{
	char self[PATH_MAX] = "", absolute[PATH_MAX];
	dl_iterate_phdr(find_self, self);
	const char *so = self[0] && realpath(self, absolute) ? strstr(absolute, ".so.") : NULL;
	return so && strchr(so + 4, '.') && snprintf(version, size, "%s", so + 4) < (int)size;
}

/* A file: nvidia-persistenced's own is a socket. */
static bool from_plugin(char *path)
{
	struct stat file;
	if (stat(PLUGIN_STATE, &file) != 0 || !S_ISREG(file.st_mode) || !readable(PLUGIN_STATE))
		return false;
	strcpy(path, PLUGIN_STATE);
	return true;
}

static bool locate(char *path)
{
	const char *root = getenv("FAKEFABRIC_ROOT");
	if (root && *root)
		return in_root(root, path);
	if (beside_self(path))
		return true;
	machine = control_node() && (in_root(FALLBACK_ROOT, path) || in_root(KERNEL_ROOT, path) || from_plugin(path));
	return machine;
}

bool ff_state_opens(uint32_t minor)
{
	char path[32];
	struct stat node;
	snprintf(path, sizeof path, "/dev/nvidia%u", minor);
	return !machine || (stat(path, &node) == 0 && S_ISCHR(node.st_mode));
}

static long file_size(int fd)
{
	return lseek(fd, 0, SEEK_END);
}

static bool valid(const struct ff_header *h, size_t size)
{
	size_t body = (sizeof(struct ff_node) + (size_t)h->gpu_count * sizeof(struct ff_gpu) + 63) / 64 * 64;
	size_t offset = (sizeof(struct ff_header) + 63) / 64 * 64;
	return memcmp(h->magic, FF_MAGIC, 8) == 0 && h->version == FF_VERSION && h->gpu_count <= FF_MAX_GPUS &&
	       h->body_offset == offset && h->body_size == body && h->file_size == size && size == offset + 2 * body;
}

static bool sound(const struct mapping *m)
{
	return m->gpu_count <= FF_MAX_GPUS && m->body_offset >= sizeof(struct ff_header) && m->body_offset <= m->size &&
	       m->body_size <= (m->size - m->body_offset) / 2 && ff_gpu_offset(m->gpu_count) <= m->body_size;
}

static struct mapping *map(const char *path)
{
	bool writable = true;
	int fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0) {
		writable = false;
		fd = open(path, O_RDONLY | O_CLOEXEC);
	}
	if (fd < 0)
		return NULL;
	long size = file_size(fd);
	struct mapping *m = calloc(1, sizeof *m);
	if (!m || size < (long)sizeof(struct ff_header) || size > (1L << 30))
		goto fail;
	m->header = mmap(NULL, (size_t)size, PROT_READ | (writable ? PROT_WRITE : 0), MAP_SHARED, fd, 0);
	if (m->header == MAP_FAILED)
		goto fail;
	if (!valid(m->header, (size_t)size)) {
		munmap(m->header, (size_t)size);
		goto fail;
	}
	m->fd = fd;
	m->size = (size_t)size;
	m->body_offset = m->header->body_offset;
	m->body_size = m->header->body_size;
	m->gpu_count = m->header->gpu_count;
	if (!sound(m)) { /* changed between the check and now */
		munmap(m->header, m->size);
		goto fail;
	}
	m->writable = writable;
	return m;
fail:
	free(m);
	close(fd);
	return NULL;
}

static struct mapping *load_current(void)
{
	return __atomic_load_n(&current, __ATOMIC_ACQUIRE);
}

/* Maps the file again unless another thread has done so since `seen` was found to be out of date. */
static struct mapping *reopen(struct mapping *seen)
{
	pthread_mutex_lock(&lock);
	struct mapping *m = current;
	if (m == seen) {
		struct mapping *fresh = (state_path[0] || locate(state_path)) ? map(state_path) : NULL;
		if (fresh) {
			fresh->older = m;
			if (client)
				hold_client(fresh);
			__atomic_store_n(&current, fresh, __ATOMIC_RELEASE);
			m = fresh;
		} else {
			m = NULL;
		}
	}
	pthread_mutex_unlock(&lock);
	return m;
}

/* A file cut short under a mapping would kill the process at the first touch beyond its end, so its size is asked for before each use. */
static bool intact(const struct mapping *m)
{
	return file_size(m->fd) >= (long)m->size;
}

static struct mapping *usable(void)
{
	struct mapping *m = load_current();
	if (m && intact(m) && !__atomic_load_n(&m->header->replaced, __ATOMIC_ACQUIRE))
		return m;
	m = reopen(m);
	return m && intact(m) ? m : NULL;
}

static char *body(const struct mapping *m, uint64_t sequence)
{
	return (char *)m->header + m->body_offset + (sequence & 1) * m->body_size;
}

/* The mapping that the NVML call under way on this thread uses. Looking for it costs a system call, which is most of a getter's time, so
 * it is looked for once per call. */
static __thread struct mapping *pinned;

static struct mapping *mapping(void)
{
	return pinned ? pinned : usable();
}

void ff_state_pin(void)
{
	pinned = usable();
}

void ff_state_unpin(void)
{
	pinned = NULL;
}

uint32_t ff_state_delays(void)
{
	const struct mapping *m = pinned;
	if (!m)
		return 0;
	const struct ff_node *node = (const void *)body(m, __atomic_load_n(&m->header->sequence, __ATOMIC_ACQUIRE));
	return __atomic_load_n(&node->delay_count, __ATOMIC_RELAXED);
}

bool ff_state_open(void)
{
	return usable() != NULL;
}

const struct ff_header *ff_state_header(void)
{
	struct mapping *m = usable();
	return m ? m->header : NULL;
}

bool ff_state_root(char *path)
{
	size_t n = strlen(state_path), tail = strlen("/state/node");
	if (n <= tail)
		return false;
	memcpy(path, state_path, n - tail);
	path[n - tail] = 0;
	return true;
}

bool ff_state_administered(void)
{
	struct stat file;
	uid_t self = geteuid();
	/* The call itself: the C library's stat would need a newer one than older images have. */
	return self == 0 || (syscall(SYS_newfstatat, AT_FDCWD, state_path, &file, 0) == 0 && file.st_uid == self);
}

bool ff_state_gpus(unsigned int *count)
{
	struct mapping *m = mapping();
	if (m)
		*count = m->gpu_count;
	return m;
}

bool ff_state_copy(size_t offset, void *out, size_t size)
{
	const struct mapping *m = mapping();
	if (!m || offset > m->body_size || size > m->body_size - offset)
		return false;
	for (;;) {
		uint64_t sequence = __atomic_load_n(&m->header->sequence, __ATOMIC_ACQUIRE);
		memcpy(out, body(m, sequence) + offset, size);
		__atomic_thread_fence(__ATOMIC_ACQUIRE);
		if (__atomic_load_n(&m->header->sequence, __ATOMIC_RELAXED) == sequence)
			return true;
	}
}

/* The mapping that this thread changes now. */
static __thread struct mapping *changing;

/* The open file description that only this process has. */
static int own_fd(struct mapping *m)
{
	char self[64];
	if (m->holder != getpid()) {
		if (m->holder)
			close(m->hold); /* the parent's */
		snprintf(self, sizeof self, "/proc/self/fd/%d", m->fd);
		m->hold = open(self, O_RDWR | O_CLOEXEC);
		if (m->hold < 0)
			m->hold = fcntl(m->fd, F_DUPFD_CLOEXEC, 0); /* forks share it; better than none */
		m->holder = getpid();
	}
	return m->hold;
}

static struct flock byte_lock(short type, uint64_t place)
{
	return (struct flock){.l_type = type, .l_whence = SEEK_SET, .l_start = (off_t)place, .l_len = 1};
}

void ff_state_hold(uint64_t place)
{
	struct flock l = byte_lock(F_WRLCK, place);
	fcntl(own_fd(changing), F_OFD_SETLK, &l);
}

static void hold_client(struct mapping *m)
{
	struct flock l = byte_lock(F_RDLCK, CLIENT_PLACE);
	fcntl(own_fd(m), F_OFD_SETLK, &l);
}

void ff_state_client(bool open)
{
	pthread_mutex_lock(&lock);
	client = open;
	for (struct mapping *m = current; m; m = m->older) {
		struct flock l = byte_lock(open ? F_RDLCK : F_UNLCK, CLIENT_PLACE);
		fcntl(own_fd(m), F_OFD_SETLK, &l);
	}
	pthread_mutex_unlock(&lock);
}

bool ff_state_other_clients(void)
{
	struct mapping *m = changing ? changing : mapping();
	struct flock l = byte_lock(F_WRLCK, CLIENT_PLACE);
	return !m || fcntl(own_fd(m), F_OFD_GETLK, &l) != 0 || l.l_type != F_UNLCK;
}

bool ff_state_held(uint64_t place)
{
	const struct mapping *m = changing ? changing : mapping();
	struct flock l = byte_lock(F_WRLCK, place);
	return !m || fcntl(m->fd, F_OFD_GETLK, &l) != 0 || l.l_type != F_UNLCK;
}

static bool file_lock(int fd, int how)
{
	while (flock(fd, how) != 0)
		if (errno != EINTR)
			return false;
	return true;
}

enum ff_update ff_state_update(bool (*change)(struct ff_node *, struct ff_gpu *, unsigned int, void *), void *argument)
{
	struct mapping *m = usable();
	if (!m)
		return FF_UPDATE_GONE;
	if (!m->writable)
		return FF_UPDATE_NO_PERMISSION;
	enum ff_update result = FF_UPDATE_GONE;
	pthread_mutex_lock(&lock);
	if (!file_lock(m->fd, LOCK_EX)) {
		pthread_mutex_unlock(&lock);
		return FF_UPDATE_GONE;
	}
	if (intact(m)) {
		uint64_t sequence = m->header->sequence;
		char *next = body(m, sequence + 1);
		memcpy(next, body(m, sequence), m->body_size);
		struct ff_node *node = (struct ff_node *)next;
		struct ff_gpu *gpus = (struct ff_gpu *)(next + sizeof *node);
		result = FF_UPDATE_REFUSED;
		changing = m;
		if (change(node, gpus, m->gpu_count, argument)) {
			__atomic_store_n(&m->header->sequence, sequence + 1, __ATOMIC_RELEASE);
			result = FF_UPDATED;
		}
		changing = NULL;
	}
	file_lock(m->fd, LOCK_UN);
	pthread_mutex_unlock(&lock);
	return result;
}

void ff_state_wait(const struct ff_header *header, uint32_t value, unsigned int milliseconds)
{
	struct timespec t = {.tv_sec = milliseconds / 1000, .tv_nsec = (long)(milliseconds % 1000) * 1000000};
	syscall(SYS_futex, &header->wake, FUTEX_WAIT, value, &t, NULL, 0);
}

__attribute__((destructor)) static void unmap_all(void)
{
	for (struct mapping *m = current; m;) {
		struct mapping *older = m->older;
		munmap(m->header, m->size);
		close(m->fd);
		if (m->holder)
			close(m->hold);
		free(m);
		m = older;
	}
	current = NULL;
}
