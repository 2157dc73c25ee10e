package fault

// Opposite returns the event that undoes another one, with its arguments. Events that have happened once and for all, as an XID, and those
// that set a value, whose earlier value is not kept, have none.
func Opposite(name string, args Arguments) (event string, with Arguments, ok bool) {
	pick := func(names ...string) Arguments {
		out := Arguments{}
		for _, n := range names {
			if v, given := args[n]; given {
				out[n] = v
			}
		}
		return out
	}
	switch name {
	case "gpu-lost":
		return "gpu-back", pick("gpu"), true
	case "nvlink-down":
		return "nvlink-up", pick("gpu", "link"), true
	case "nvlink-up":
		return "nvlink-down", pick("gpu", "link"), true
	case "port-down":
		return "port-up", pick("device"), true
	case "port-up":
		return "port-down", pick("device"), true
	case "uvm-unload":
		return "uvm-load", nil, true
	case "uvm-load":
		return "uvm-unload", nil, true
	case "mig-busy":
		with = pick("gpu")
		with["busy"] = "false"
		return "mig-busy", with, args["busy"] != "false"
	case "fabric-health":
		with = pick("problem", "gpu")
		with["present"] = "false"
		return "fabric-health", with, args["present"] != "false"
	case "delay":
		with = pick("function")
		with["ms"] = "0"
		return "delay", with, true
	case "imex-partition", "imex-silence":
		return "imex-heal", nil, true
	}
	return "", nil, false
}
