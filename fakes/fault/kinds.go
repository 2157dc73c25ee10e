package fault

// Arguments that many events share.
var (
	gpuParameter    = Parameter{Name: "gpu", Summary: "index of the GPU", Required: true}
	deviceParameter = Parameter{Name: "device", Summary: "InfiniBand device, e.g. mlx5_0", Required: true}
)

// Kinds lists every event.
func Kinds() []Kind {
	return []Kind{
		{"xid", "an XID error event", []Parameter{gpuParameter,
			{Name: "code", Summary: "the XID's number", Required: true},
			{Name: "gi", Summary: "GPU instance it belongs to, on a GPU with MIG", Default: ""},
			{Name: "ci", Summary: "compute instance it belongs to", Default: ""}}, xid},
		{"ecc", "memory errors: counters and an event", []Parameter{gpuParameter,
			{Name: "kind", Summary: "corrected or uncorrected", Default: "corrected"},
			{Name: "place", Summary: "dram: the memory; sram: caches and registers", Default: "dram"},
			{Name: "count", Summary: "how many", Default: "1"}}, ecc},
		{"gpu-lost", "the GPU falls off the bus: XID 79, and every call answers GPU is lost", []Parameter{gpuParameter}, gpuLost},
		{"gpu-back", "a lost GPU is back", []Parameter{gpuParameter}, gpuBack},
		{"nvlink-down", "an NVLink goes down", []Parameter{gpuParameter, {Name: "link", Summary: "number of the link", Required: true}},
			nvlink(0)},
		{"nvlink-up", "an NVLink comes up again", []Parameter{gpuParameter, {Name: "link", Summary: "number of the link", Required: true}},
			nvlink(1)},
		{"clique-change", "GPUs register with another NVLink clique", []Parameter{
			{Name: "gpu", Summary: "index of one GPU, or all", Default: "all"},
			{Name: "cluster", Summary: "the cluster's UUID; empty keeps it", Default: ""},
			{Name: "clique", Summary: "the clique's number; empty keeps it", Default: ""},
			{Name: "state", Summary: "completed, in-progress, not-started or not-supported", Default: "completed"}}, cliqueChange},
		{"fabric-health", "GPUs report a problem of the NVLink fabric, in NVML's health mask and summary, or that it is over", []Parameter{
			{Name: "problem", Summary: "one of " + healthNames(), Required: true},
			{Name: "gpu", Summary: "index of one GPU, or all", Default: "all"},
			{Name: "present", Summary: "true or false", Default: "true"}}, fabricHealth},
		{"mem", "memory in use by nobody in particular", []Parameter{gpuParameter, {Name: "mib", Summary: "MiB in use", Required: true}}, memory},
		{"util", "utilisation", []Parameter{gpuParameter, {Name: "percent", Summary: "of the GPU", Required: true},
			{Name: "memory", Summary: "percent of the memory's bandwidth", Default: "0"}}, utilisation},
		{"temp", "temperature", []Parameter{gpuParameter, {Name: "celsius", Summary: "degrees", Required: true}}, temperature},
		{"power", "power draw", []Parameter{gpuParameter, {Name: "watts", Summary: "watts drawn", Required: true}}, power},
		{"mig-busy", "changes of the MIG layout are refused as in use, or no longer", []Parameter{gpuParameter,
			{Name: "busy", Summary: "true or false", Default: "true"}}, migBusy},
		{"mig-mode", "the machine comes up with another MIG mode: as a change and a reset of the GPU leave it, whoever has the GPU open",
			[]Parameter{gpuParameter,
				{Name: "enabled", Summary: "true or false", Default: "true"}}, migMode},
		{"driver-version", "kernel modules of another version are loaded than the driver's files are of", []Parameter{
			{Name: "version", Summary: "e.g. 535.261.03", Required: true}}, driverVersion},
		{"uvm-unload", "the module nvidia-uvm is not loaded: its major and its nodes are gone", nil, uvm(false)},
		{"uvm-load", "the module nvidia-uvm is loaded again, and its nodes are made", nil, uvm(true)},
		{"delay", "an NVML function takes longer", []Parameter{
			{Name: "function", Summary: "e.g. nvmlDeviceGetMemoryInfo, or * for all", Required: true},
			{Name: "ms", Summary: "milliseconds; 0 ends it", Required: true}}, delay},
		{"port-down", "an InfiniBand or Ethernet port loses its link", []Parameter{deviceParameter}, port(false)},
		{"port-up", "a port gets its link back", []Parameter{deviceParameter}, port(true)},
		{"firmware-change", "a NIC shows another firmware version", []Parameter{deviceParameter,
			{Name: "version", Summary: "e.g. 28.45.1200", Required: true}}, firmware},
		{"imex-kill", "the node's IMEX daemon dies", nil, imexKill},
		{"imex-partition", "the node's IMEX daemon cannot reach peers", []Parameter{
			{Name: "peers", Summary: "addresses or names, separated by commas, or * for all", Default: "*"}}, imexPartition},
		{"imex-fail", "the node's IMEX daemon becomes UNAVAILABLE, and stays so until another is started", nil, imexFail},
		{"imex-silence", "the node's IMEX daemon answers no questions", []Parameter{
			{Name: "questions", Summary: "-N those for the whole domain, * all, none", Default: "*"}}, imexSilence},
		{"imex-heal", "the node's IMEX daemon reaches every peer again, and answers", nil, imexHeal},
	}
}
