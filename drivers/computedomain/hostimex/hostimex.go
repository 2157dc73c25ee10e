// Package hostimex looks at the nvidia-imex that a node runs by itself (computeDomains.imex: host): whether it can serve compute domains,
// and if not why. It starts, stops and configures nothing of the node.
//
// The service is queried by its control socket, since no more of it is needed: no network of the node, and no file but the socket.
// NVIDIA's DRA driver queries a host's service in the same way, and has the administrator set the same two keys of its
// configuration (its page on prerequisites, "Host-managed IMEX"): IMEX_CMD_ENABLED=1 and IMEX_CMD_UNIX_DOMAIN_PATH.
package hostimex

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"gpufabric.io/drivers/computedomain/driverfiles"
	"gpufabric.io/drivers/hardware/driver"
	"gpufabric.io/drivers/hardware/imex"
)

// Unit is the service's name in systemd.
const Unit = "nvidia-imex.service"

// Why a node's service cannot serve a domain.
const (
	// NotInstalled: the driver's root has no nvidia-imex.
	NotInstalled = "HostIMEXNotInstalled"
	// NotRunning: systemd runs no nvidia-imex.
	NotRunning = "HostIMEXNotRunning"
	// NoSocket: it runs, and has no control socket where one is expected.
	NoSocket = "HostIMEXNoSocket"
	// NotAnswering: it has the socket, and does not answer.
	NotAnswering = "HostIMEXNotAnswering"
	// NotReady: its state is not READY.
	NotReady = "HostIMEXNotReady"
	// NodesMissing: its list of nodes lacks one of the domain, or is another than that of one.
	NodesMissing = "HostIMEXNodesMissing"
	// VersionMismatch: it is of another version than the driver, or than the service of another node of the domain.
	VersionMismatch = "HostIMEXVersionMismatch"
)

// Finding is why a service cannot serve; the zero value means that it can.
type Finding struct {
	// Reason is one of the constants above, Message the same in words with the remedy.
	Reason, Message string
}

func found(reason, format string, args ...any) Finding {
	return Finding{Reason: reason, Message: fmt.Sprintf(format, args...)}
}

// Service is a node's own nvidia-imex. Its methods may be called from any goroutine.
type Service struct {
	// Driver is where the node's driver may be.
	Driver driver.Search
	// SysfsRoot is the node's /sys.
	SysfsRoot string
	// Socket is the service's control socket, at the same path on the node and here.
	Socket string
	// Directory is one of this process's own, for links to the driver's programs.
	Directory string
	// Execute runs these programs.
	Execute imex.Execute

	linking sync.Mutex
}

// Look reports whether the service is READY, and if not why.
func (s *Service) Look(ctx context.Context) Finding {
	control, err := s.control()
	if err != nil {
		return found(NotInstalled, "the node has no nvidia-imex that gpufabric can ask: %v", err)
	}
	state, err := control.State(ctx)
	switch {
	case err == nil && state == imex.Ready:
		return Finding{}
	case err == nil && state != imex.Unavailable:
		return found(NotReady, "the node's nvidia-imex reports %s: wait for it, or read journalctl -u %s on the node", state, Unit)
	case !Running(s.SysfsRoot):
		return s.notRunning(ctx, control)
	case !isSocket(s.Socket):
		return found(NoSocket, "the node's nvidia-imex runs, and has no control socket %s: set IMEX_CMD_ENABLED=1 and "+
			"IMEX_CMD_UNIX_DOMAIN_PATH=%s in /etc/nvidia-imex/config.cfg and start it again, or set computeDomains.hostSocket of the chart to the "+
			"path that is set there", s.Socket, s.Socket)
	case err != nil:
		return found(NotAnswering, "the node's nvidia-imex runs, and does not answer by %s: %v: read journalctl -u %s on the node", s.Socket, err,
			Unit)
	default:
		return found(NotReady, "the node's nvidia-imex reports %s, which it stays until it is started again: read journalctl -u %s on the node",
			state, Unit)
	}
}

// notRunning distinguishes a stopped service from one that cannot start: nvidia-imex ends at once if the loaded driver's version does not
// match (NVIDIA's IMEX guide, "Other NVIDIA Software Packages").
func (s *Service) notRunning(ctx context.Context, control imex.Control) Finding {
	loaded := s.Driver.Loaded()
	if version, err := control.Version(ctx); err == nil && loaded != "" && version != loaded {
		return found(VersionMismatch, "the node's nvidia-imex does not run: it is of version %s, and the loaded driver of %s: install "+
			"nvidia-imex of version %s and start it", version, loaded, loaded)
	}
	return found(NotRunning, "the node's nvidia-imex does not run: systemctl enable --now %s on the node, and journalctl -u %s if it ends "+
		"again", Unit, Unit)
}

// control finds the driver's programs.
func (s *Service) control() (imex.Control, error) {
	set, err := driverfiles.Find(s.Driver.Locate().Root)
	if err != nil {
		return imex.Control{}, err
	}
	s.linking.Lock()
	defer s.linking.Unlock()
	programs, err := link(s.Directory, set)
	if err != nil {
		return imex.Control{}, err
	}
	return imex.Control{Programs: programs, Run: s.Execute, Socket: s.Socket}, nil
}

func isSocket(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode()&os.ModeSocket != 0
}

// Running reports whether systemd runs the node's own nvidia-imex. systemd keeps each service in a cgroup of its name, which is seen
// without the node's processes, and removes it when the service ends.
func Running(sysfs string) bool {
	// Version 2 lists a process of another PID namespace as 0.
	processes, err := os.ReadFile(filepath.Join(sysfs, "fs/cgroup/system.slice", Unit, "cgroup.procs"))
	if err == nil && strings.TrimSpace(string(processes)) != "" {
		return true
	}
	// Version 1 leaves such processes out (kernel/cgroup/cgroup-v1.c, pidlist_array_load), so that the list is empty in a pod.
	info, err := os.Stat(filepath.Join(sysfs, "fs/cgroup/systemd/system.slice", Unit))
	return err == nil && info.IsDir()
}
