/* The part of the Fabric Manager SDK's interface that manages partitions, as the SDK chapter of NVIDIA's Fabric Manager user guide
 * describes it (Data Structures, and one section a function). A version is the structure's size with 1 in the highest byte. */
#ifndef FAKE_NVFM_H
#define FAKE_NVFM_H

#define EXPORT __attribute__((visibility("default")))

enum { MAX_TEXT = 256, MAX_UUID = 80, MAX_BUS_ID = 32, MAX_GPUS = 16, MAX_PARTITIONS = 64 };

enum {
	FM_SUCCESS = 0,
	FM_BADPARAM = -1,
	FM_GENERIC_ERROR = -2,
	FM_NOT_SUPPORTED = -3,
	FM_UNINITIALIZED = -4,
	FM_TIMEOUT = -5,
	FM_VERSION_MISMATCH = -6,
	FM_IN_USE = -7,
	FM_NOT_CONFIGURED = -8,
	FM_CONNECTION_NOT_VALID = -9,
	FM_NVLINK_ERROR = -10,
};

typedef struct {
	unsigned version;
	char address[MAX_TEXT];
	unsigned timeout_ms;
	unsigned is_unix_socket;
} connect_params;

typedef struct {
	unsigned physical_id;
	char uuid[MAX_UUID];
	char bus_id[MAX_BUS_ID];
	unsigned links, max_links, line_rate;
} partition_gpu;

typedef struct {
	unsigned id, active, gpus;
	partition_gpu gpu[MAX_GPUS];
} partition;

typedef struct {
	unsigned version, count, max_count;
	partition partition[MAX_PARTITIONS];
} partition_list;

typedef struct {
	unsigned version, count;
	unsigned id[MAX_PARTITIONS];
} activated_list;

#define VERSION(type) (unsigned)(sizeof(type) | 1u << 24)

EXPORT int fmLibInit(void);
EXPORT int fmLibShutdown(void);
EXPORT int fmConnect(connect_params *params, void **handle);
EXPORT int fmDisconnect(void *handle);
EXPORT int fmGetSupportedFabricPartitions(void *handle, partition_list *list);
EXPORT int fmActivateFabricPartition(void *handle, unsigned id);
EXPORT int fmDeactivateFabricPartition(void *handle, unsigned id);
EXPORT int fmSetActivatedFabricPartitions(void *handle, activated_list *list);

#endif
