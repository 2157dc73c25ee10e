/* A libnvfm.so.1 without hardware. The address of a connection is a file that stands for nv-fabricmanager and its state; no file, no
 * fabric manager. Its lines, which package nvfm writes:
 *
 *   mode shared|baremetal        FABRIC_MODE 1 or 0
 *   restart 0|1                  FABRIC_MODE_RESTART
 *   configured 0|1               0: restarted, and not yet given its active partitions
 *   unbound MODULE               a GPU that NVIDIA's driver does not have
 *   partition ID ACTIVE MODULE:BUSID ...   BUSID is - where the fabric manager does not report it (from H100 on)
 *
 * Rules, from NVIDIA's Fabric Manager user guide, chapter "Fabric Manager SDK":
 *   - a GPU is in at most one active partition: activation answers IN_USE ("is already active or the GPUs are in use by other partitions")
 *   - an unknown partition is BADPARAM; one to deactivate that is not active is UNINITIALIZED
 *   - outside shared NVSwitch mode everything is NOT_SUPPORTED
 *   - after a restart with FABRIC_MODE_RESTART=1 the list of active partitions must be set first, an empty one too; until then there is
 *     no data: NOT_CONFIGURED
 * Stricter than the guide: activation needs every GPU of the partition bound to NVIDIA's driver, as links of an HGX A100 are trained
 * through it (from H100 on they train alone), and answers NVLINK_ERROR; and the list that is set must be free of overlaps. */
#include "nvfm.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct {
	bool shared, restart, configured;
	unsigned unbound[MAX_GPUS], unbound_count;
	partition_list list;
} manager;

typedef struct connection {
	struct connection *next;
	char address[MAX_TEXT];
} connection;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static bool initialized;
static connection *connections;

static bool parse_partition(manager *m, char *text)
{
	char *rest = NULL, *word = strtok_r(text, " \n", &rest);
	if (!word || m->list.count == MAX_PARTITIONS)
		return false;
	partition *p = &m->list.partition[m->list.count++];
	p->id = (unsigned)strtoul(word, NULL, 10);
	if (!(word = strtok_r(NULL, " \n", &rest)))
		return false;
	p->active = word[0] == '1';
	while ((word = strtok_r(NULL, " \n", &rest))) {
		char *bus = strchr(word, ':');
		if (!bus || p->gpus == MAX_GPUS)
			return false;
		*bus++ = 0;
		partition_gpu *g = &p->gpu[p->gpus++];
		g->physical_id = (unsigned)strtoul(word, NULL, 10);
		g->links = g->max_links = 18;
		g->line_rate = 26562;
		snprintf(g->bus_id, sizeof g->bus_id, "%s", strcmp(bus, "-") == 0 ? "00000000:00:00.0" : bus);
	}
	return true;
}

static bool parse_line(manager *m, char *line)
{
	char word[16];
	unsigned number;
	if (sscanf(line, "mode %15s", word) == 1)
		m->shared = strcmp(word, "shared") == 0;
	else if (sscanf(line, "restart %u", &number) == 1)
		m->restart = number;
	else if (sscanf(line, "configured %u", &number) == 1)
		m->configured = number;
	else if (sscanf(line, "unbound %u", &number) == 1 && m->unbound_count < MAX_GPUS)
		m->unbound[m->unbound_count++] = number;
	else if (strncmp(line, "partition ", 10) == 0)
		return parse_partition(m, line + 10);
	else
		return false;
	return true;
}

static int load(const char *address, manager *m)
{
	FILE *file = fopen(address, "r");
	if (!file)
		return FM_CONNECTION_NOT_VALID;
	memset(m, 0, sizeof *m);
	char line[1024];
	int result = FM_SUCCESS;
	while (result == FM_SUCCESS && fgets(line, sizeof line, file))
		result = parse_line(m, line) ? FM_SUCCESS : FM_GENERIC_ERROR;
	fclose(file);
	return result;
}

static int store(const char *address, const manager *m)
{
	char temporary[MAX_TEXT + 8];
	snprintf(temporary, sizeof temporary, "%s.new", address);
	FILE *file = fopen(temporary, "w");
	if (!file)
		return FM_GENERIC_ERROR;
	fprintf(file, "mode %s\nrestart %d\nconfigured %d\n", m->shared ? "shared" : "baremetal", m->restart, m->configured);
	for (unsigned i = 0; i < m->unbound_count; i++)
		fprintf(file, "unbound %u\n", m->unbound[i]);
	for (unsigned i = 0; i < m->list.count; i++) {
		const partition *p = &m->list.partition[i];
		fprintf(file, "partition %u %u", p->id, p->active);
		for (unsigned g = 0; g < p->gpus; g++)
			fprintf(file, " %u:%s", p->gpu[g].physical_id, strcmp(p->gpu[g].bus_id, "00000000:00:00.0") == 0 ? "-" : p->gpu[g].bus_id);
		fputc('\n', file);
	}
	bool written = !ferror(file);
	if (fclose(file) != 0 || !written || rename(temporary, address) != 0)
		return FM_GENERIC_ERROR;
	return FM_SUCCESS;
}

static partition *find(manager *m, unsigned id)
{
	for (unsigned i = 0; i < m->list.count; i++)
		if (m->list.partition[i].id == id)
			return &m->list.partition[i];
	return NULL;
}

static bool overlap(const partition *a, const partition *b)
{
	for (unsigned i = 0; i < a->gpus; i++)
		for (unsigned j = 0; j < b->gpus; j++)
			if (a->gpu[i].physical_id == b->gpu[j].physical_id)
				return true;
	return false;
}

static bool in_use(const manager *m, const partition *p)
{
	for (unsigned i = 0; i < m->list.count; i++)
		if (m->list.partition[i].active && overlap(&m->list.partition[i], p))
			return true;
	return false;
}

static bool bound(const manager *m, const partition *p)
{
	for (unsigned g = 0; g < p->gpus; g++)
		for (unsigned i = 0; i < m->unbound_count; i++)
			if (p->gpu[g].physical_id == m->unbound[i])
				return false;
	return true;
}

/* begin takes the lock and loads the state of a connection's fabric manager. The caller gives the lock back, whatever the answer. */
static int begin(void *handle, manager *m, const char **address)
{
	pthread_mutex_lock(&lock);
	if (!initialized)
		return FM_UNINITIALIZED;
	for (connection *c = connections; c; c = c->next)
		if (c == handle) {
			*address = c->address;
			int result = load(c->address, m);
			return result != FM_SUCCESS ? result : m->shared ? FM_SUCCESS : FM_NOT_SUPPORTED;
		}
	return FM_BADPARAM;
}

static int end(int result)
{
	pthread_mutex_unlock(&lock);
	return result;
}

int fmLibInit(void)
{
	pthread_mutex_lock(&lock);
	int result = initialized ? FM_IN_USE : FM_SUCCESS;
	initialized = true;
	return end(result);
}

int fmLibShutdown(void)
{
	pthread_mutex_lock(&lock);
	int result = initialized ? FM_SUCCESS : FM_UNINITIALIZED;
	initialized = false;
	for (connection *c = connections, *next; c; c = next) {
		next = c->next;
		free(c);
	}
	connections = NULL;
	return end(result);
}

int fmConnect(connect_params *params, void **handle)
{
	pthread_mutex_lock(&lock);
	if (!initialized)
		return end(FM_UNINITIALIZED);
	if (!params || !handle || strnlen(params->address, MAX_TEXT) == MAX_TEXT)
		return end(FM_BADPARAM);
	if (params->version != VERSION(connect_params))
		return end(FM_VERSION_MISMATCH);
	if (!params->is_unix_socket || access(params->address, R_OK) != 0)
		return end(FM_CONNECTION_NOT_VALID);
	connection *c = calloc(1, sizeof *c);
	if (!c)
		return end(FM_GENERIC_ERROR);
	memcpy(c->address, params->address, sizeof c->address);
	c->next = connections;
	connections = c;
	*handle = c;
	return end(FM_SUCCESS);
}

int fmDisconnect(void *handle)
{
	pthread_mutex_lock(&lock);
	if (!initialized)
		return end(FM_UNINITIALIZED);
	for (connection **c = &connections; *c; c = &(*c)->next)
		if (*c == handle) {
			*c = (*c)->next;
			free(handle);
			return end(FM_SUCCESS);
		}
	return end(FM_BADPARAM);
}

int fmGetSupportedFabricPartitions(void *handle, partition_list *list)
{
	manager m;
	const char *address;
	int result = begin(handle, &m, &address);
	if (result == FM_SUCCESS && !list)
		result = FM_BADPARAM;
	if (result == FM_SUCCESS && list->version != VERSION(partition_list))
		result = FM_VERSION_MISMATCH;
	if (result == FM_SUCCESS && !m.configured)
		result = FM_NOT_CONFIGURED;
	if (result == FM_SUCCESS) {
		m.list.version = list->version;
		m.list.max_count = m.list.count;
		*list = m.list;
	}
	return end(result);
}

int fmActivateFabricPartition(void *handle, unsigned id)
{
	manager m;
	const char *address;
	int result = begin(handle, &m, &address);
	partition *p = result == FM_SUCCESS ? find(&m, id) : NULL;
	if (result != FM_SUCCESS)
		return end(result);
	if (!m.configured)
		return end(FM_NOT_CONFIGURED);
	if (!p)
		return end(FM_BADPARAM);
	if (in_use(&m, p))
		return end(FM_IN_USE);
	if (!bound(&m, p))
		return end(FM_NVLINK_ERROR);
	p->active = 1;
	return end(store(address, &m));
}

int fmDeactivateFabricPartition(void *handle, unsigned id)
{
	manager m;
	const char *address;
	int result = begin(handle, &m, &address);
	partition *p = result == FM_SUCCESS ? find(&m, id) : NULL;
	if (result != FM_SUCCESS)
		return end(result);
	if (!m.configured)
		return end(FM_NOT_CONFIGURED);
	if (!p)
		return end(FM_BADPARAM);
	if (!p->active)
		return end(FM_UNINITIALIZED);
	p->active = 0;
	return end(store(address, &m));
}

int fmSetActivatedFabricPartitions(void *handle, activated_list *list)
{
	manager m;
	const char *address;
	int result = begin(handle, &m, &address);
	if (result != FM_SUCCESS)
		return end(result);
	if (!m.restart)
		return end(FM_NOT_SUPPORTED);
	if (!list || list->version != VERSION(activated_list) || list->count > MAX_PARTITIONS)
		return end(FM_BADPARAM);
	for (unsigned i = 0; i < m.list.count; i++)
		m.list.partition[i].active = 0;
	for (unsigned i = 0; i < list->count; i++) {
		partition *p = find(&m, list->id[i]);
		if (!p || in_use(&m, p))
			return end(FM_BADPARAM);
		p->active = 1;
	}
	m.configured = true;
	return end(store(address, &m));
}
