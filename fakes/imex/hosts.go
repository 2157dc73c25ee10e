package imex

import (
	"bufio"
	"context"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
)

// HostsFile is an Options.Resolve that reads one file like /etc/hosts each time (hosts(5)), without DNS. It is for daemons whose
// containers have no /etc/hosts of their own.
func HostsFile(path string) func(ctx context.Context, name string) ([]netip.Addr, error) {
	return func(_ context.Context, name string) ([]netip.Addr, error) {
		if address, err := netip.ParseAddr(name); err == nil {
			return []netip.Addr{address}, nil
		}
		file, err := os.Open(path)
		if err != nil {
			return nil, fmt.Errorf("look up %s: %w", name, err)
		}
		defer file.Close() //nolint:errcheck // read only
		var found []netip.Addr
		lines := bufio.NewScanner(file)
		for lines.Scan() {
			line, _, _ := strings.Cut(lines.Text(), "#")
			fields := strings.Fields(line)
			if len(fields) < 2 || !slices.Contains(fields[1:], name) {
				continue
			}
			if address, err := netip.ParseAddr(fields[0]); err == nil {
				found = append(found, address)
			}
		}
		if err := lines.Err(); err != nil {
			return nil, fmt.Errorf("look up %s in %s: %w", name, path, err)
		}
		if len(found) == 0 {
			return nil, fmt.Errorf("look up %s: %s does not have it", name, path)
		}
		return found, nil
	}
}
