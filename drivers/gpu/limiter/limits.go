package limiter

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// File is where the library looks for a container's limits. Directory is where it looks for those of claims, one file each; it adds
// up the limits of several files for one GPU. In Directory, only mounted files count.
const (
	File      = "/usr/local/vgpu/limits"
	Directory = "/usr/local/vgpu/limits.d"
)

// Cores has a directory for each GPU of which a container has a percentage, by the GPU's UUID: the pages of all containers with one, and
// their order (gpufabric.io/drivers/gpu/cores). CoresOwn has the container's own page, by the same name.
const (
	Cores    = "/usr/local/vgpu/cores"
	CoresOwn = "/usr/local/vgpu/cores.own"
)

// Account is the file in which the library counts the container's memory (package account). Where none is mounted, the library makes one
// in Own, if that is there, and else beside the region.
const (
	Account = "/usr/local/vgpu/account"
	Own     = "/usr/local/vgpu/own"
)

// Region is the directory in which existing monitors find the shared region of a container (package region). It is a copy of the
// account, and decides nothing.
const Region = "/tmp/vgpu"

// AccountsOfClaims has such a file for each GPU of which a container has a share by a claim, by the GPU's UUID. All containers of that
// share have it. Of a GPU of which a container has several shares, the library counts the sum in the container's own file.
const AccountsOfClaims = "/usr/local/vgpu/accounts.d"

// Words of a file of limits: its first line, the line of Text's closed, and memory that is limited elsewhere.
const (
	heading    = "gpufabric-limits 1"
	closedLine = "closed"
	elsewhere  = "-" // instead of an amount of memory
)

// The maximum sizes that the library reads (limits.h, limits.c).
const (
	mostGPUs  = 16
	mostBytes = 1 << 47
)

// Limit is the part of one GPU that a container may use.
type Limit struct {
	UUID string
	// Bytes of memory; 0: no limit.
	Bytes int64
	// Elsewhere means that NVIDIA's driver limits the memory: the library neither counts nor shows it.
	Elsewhere bool
	// Cores is in percent of the GPU's SMs; 0: no limit.
	Cores int
}

// ErrLimit marks limits that the library could not read: it would then refuse its container all GPU memory.
var ErrLimit = errors.New("not a valid limit for a container")

// Text is the file of a container's limits. With closed the library refuses all memory where it cannot count. Without it, each
// process is then held to the limits separately.
func Text(limits []Limit, closed bool) ([]byte, error) {
	if len(limits) == 0 || len(limits) > mostGPUs {
		return nil, fmt.Errorf("%d GPUs, where 1 to %d are allowed: %w", len(limits), mostGPUs, ErrLimit)
	}
	var text strings.Builder
	text.WriteString(heading + "\n")
	if closed {
		text.WriteString(closedLine + "\n")
	}
	named := map[string]bool{}
	for _, l := range limits {
		switch {
		case !strings.HasPrefix(l.UUID, "GPU-") || len(l.UUID) > 40 || strings.ContainsAny(l.UUID, " \n"):
			return nil, fmt.Errorf("%.80q is not a GPU's UUID: %w", l.UUID, ErrLimit)
		case named[l.UUID]:
			return nil, fmt.Errorf("%s is named twice: %w", l.UUID, ErrLimit)
		case l.Elsewhere && l.Bytes != 0:
			return nil, fmt.Errorf("%d bytes of %s, whose memory is limited elsewhere: %w", l.Bytes, l.UUID, ErrLimit)
		case l.Bytes < 0 || l.Bytes > mostBytes:
			return nil, fmt.Errorf("%d bytes of %s, where 0 to %d are allowed: %w", l.Bytes, l.UUID, int64(mostBytes), ErrLimit)
		case l.Cores < 0 || l.Cores > 100:
			return nil, fmt.Errorf("%d %% of the cores of %s, where 0 to 100 are allowed: %w", l.Cores, l.UUID, ErrLimit)
		}
		named[l.UUID] = true
		memory := strconv.FormatInt(l.Bytes, 10)
		if l.Elsewhere {
			memory = elsewhere
		}
		fmt.Fprintf(&text, "%s %s %d\n", l.UUID, memory, l.Cores)
	}
	return []byte(text.String()), nil
}

// Parse reads the output of Text.
func Parse(text []byte) ([]Limit, error) {
	lines := strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
	if lines[0] != heading {
		return nil, fmt.Errorf("%.80q is not a file of limits: %w", lines[0], ErrLimit)
	}
	var out []Limit
	for _, line := range lines[1:] {
		if line == closedLine {
			continue
		}
		var l Limit
		var memory string
		n, err := fmt.Sscanf(line, "%s %s %d", &l.UUID, &memory, &l.Cores)
		if l.Elsewhere = memory == elsewhere; err == nil && n == 3 && !l.Elsewhere {
			l.Bytes, err = strconv.ParseInt(memory, 10, 64)
		}
		if err != nil || n != 3 {
			return nil, fmt.Errorf("%.80q is not a line of a file of limits: %w", line, ErrLimit)
		}
		out = append(out, l)
	}
	return out, nil
}
