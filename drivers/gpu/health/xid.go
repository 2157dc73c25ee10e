package health

import "fmt"

// severity is the consequence of an XID for the GPU.
type severity int

const (
	fatal severity = iota
	// warning XIDs report problems that the hardware has handled; the next claim is safe.
	warning
	// application XIDs are a program's own mistake; the GPU is unaffected.
	application
)

// classify returns the severity of an XID; unknown XIDs are fatal.
func classify(xid uint64) (FaultKind, severity, string) {
	switch xid {
	case 13:
		return XID, application, "graphics engine exception"
	case 31:
		return XID, application, "GPU memory page fault"
	case 43:
		return XID, application, "GPU stopped processing an application"
	case 45:
		return XID, application, "preemptive cleanup after an application's error"
	case 68:
		return XID, application, "video processor exception"
	case 109:
		return XID, application, "context switch timed out"
	case 63:
		return ECC, warning, "a row of memory was remapped, or a page retired"
	case 92:
		return ECC, warning, "many corrected memory errors"
	case 94:
		return ECC, warning, "contained memory error"
	case 48:
		return ECC, fatal, "uncorrected memory error"
	case 64:
		return ECC, fatal, "a row of memory could not be remapped"
	case 95:
		return ECC, fatal, "uncontained memory error"
	case 74, 137, 144, 145, 146, 147, 148, 149, 150:
		return NVLink, fatal, "NVLink error"
	case 79:
		return Lost, fatal, "the GPU has fallen off the bus"
	case 119, 120:
		return XID, fatal, "the GPU's system processor does not answer"
	default:
		return XID, fatal, fmt.Sprintf("error %d of the driver", xid)
	}
}
