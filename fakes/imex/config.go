// Package imex is an internode memory exchange daemon that shares no memory. It reads the real daemon's configuration, really
// connects to its peers over TCP, and answers the real control command's queries.
package imex

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Defaults, as the real daemon documents them.
const (
	DefaultConfig      = "/etc/nvidia-imex/config.cfg"
	DefaultNodesConfig = "/etc/nvidia-imex/nodes_config.cfg"
	DefaultServerPort  = 50000
	DefaultCommandPort = 50005
)

// Quorum is the condition that the daemon waits for before it is READY.
type Quorum string

// The values of IMEX_WAIT_FOR_QUORUM.
const (
	QuorumNone     Quorum = "NONE"     // no condition
	QuorumFull     Quorum = "FULL"     // a connection to every peer
	QuorumRecovery Quorum = "RECOVERY" // a connection to every peer, but only after a daemon that was connected has died here
)

// Config is the daemon's configuration file.
type Config struct {
	// BindAddress is BIND_INTERFACE_IP: the address to listen on and to dial from; invalid means every address.
	BindAddress netip.Addr
	// ServerPort is the port of every daemon of the domain.
	ServerPort uint16
	// NodesFile lists the domain's nodes, one address or name per line.
	NodesFile string
	Quorum    Quorum
	// CommandEnabled opens the control channel: on CommandSocket if that is set, else on CommandAddress:CommandPort.
	CommandEnabled bool
	CommandSocket  string
	CommandAddress netip.Addr
	CommandPort    uint16
	// Grace is how long a lost connection counts as recovering before it counts as disconnected; a node configured with -1 waits
	// without end.
	Grace    time.Duration
	Security Security
	// LogFile is empty for standard error.
	LogFile string
	// Ignored are keys that the real daemon uses and this one does not.
	Ignored []string
}

// ignored are keys that are accepted without effect.
var ignored = []string{"LOG_LEVEL", "LOG_APPEND_TO_LOG", "LOG_FILE_MAX_SIZE", "LOG_USE_SYSLOG", "LOG_MAX_ROTATE_COUNT", "DAEMONIZE",
	"NETWORK_INTERFACE"}

// ReadConfig reads the file at path. Every mistake is reported, with its line.
func ReadConfig(path string) (Config, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return Config{}, fmt.Errorf("IMEX configuration: %w", err)
	}
	c, err := ParseConfig(data)
	if err != nil {
		return c, fmt.Errorf("IMEX configuration %s: %w", path, err)
	}
	return c, nil
}

// ParseConfig reads KEY=VALUE lines; # starts a comment.
func ParseConfig(data []byte) (Config, error) {
	c := Config{ServerPort: DefaultServerPort, NodesFile: DefaultNodesConfig, Quorum: QuorumRecovery, CommandEnabled: true,
		CommandPort: DefaultCommandPort, Grace: 60 * time.Second}
	var errs []error
	lines := bufio.NewScanner(bytes.NewReader(data))
	for n := 1; lines.Scan(); n++ {
		line, _, _ := strings.Cut(lines.Text(), "#")
		line = strings.TrimSpace(line)
		if line == "" {
			continue
		}
		key, value, ok := strings.Cut(line, "=")
		if !ok {
			errs = append(errs, fmt.Errorf("line %d: %q is not KEY=VALUE", n, line))
			continue
		}
		if err := c.set(strings.TrimSpace(key), strings.Trim(strings.TrimSpace(value), `"`)); err != nil {
			errs = append(errs, fmt.Errorf("line %d: %w", n, err))
		}
	}
	return c, errors.Join(append(errs, lines.Err(), c.Security.check())...)
}

func (c *Config) set(key, value string) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("%s=%s: %w", key, value, err)
		}
	}()
	if value == "" {
		return nil // the key's default
	}
	if known, err := c.Security.set(key, value); known {
		return err
	}
	switch key {
	case "BIND_INTERFACE_IP":
		c.BindAddress, err = netip.ParseAddr(value)
	case "SERVER_PORT":
		c.ServerPort, err = port(value)
	case "IMEX_NODE_CONFIG_FILE":
		c.NodesFile = value
	case "IMEX_WAIT_FOR_QUORUM":
		c.Quorum = Quorum(strings.ToUpper(value))
		if !slices.Contains([]Quorum{QuorumNone, QuorumFull, QuorumRecovery}, c.Quorum) {
			return errors.New("allowed are NONE, FULL, RECOVERY")
		}
	case "IMEX_CMD_ENABLED":
		c.CommandEnabled, err = strconv.ParseBool(value)
	case "IMEX_CMD_BIND_INTERFACE_IP":
		c.CommandAddress, err = netip.ParseAddr(value)
	case "IMEX_CMD_PORT":
		c.CommandPort, err = port(value)
	case "IMEX_CMD_UNIX_DOMAIN_PATH":
		c.CommandSocket = value
	case "IMEX_NODE_DISCONNECTED_GRACE_TIME":
		var seconds int
		seconds, err = strconv.Atoi(value)
		switch {
		case err == nil && seconds < -1:
			return errors.New("must be a number of seconds, 0 or more, or -1 for no end")
		case seconds == -1:
			c.Grace = math.MaxInt64
		default:
			c.Grace = time.Duration(seconds) * time.Second
		}
	case "LOG_FILE_NAME":
		c.LogFile = value
	default:
		// Each version of the real daemon adds keys; an unknown key is no reason to stop.
		c.Ignored = append(c.Ignored, key)
		if !slices.Contains(ignored, key) {
			c.Ignored[len(c.Ignored)-1] += " (unknown)"
		}
	}
	return err
}

func port(value string) (uint16, error) {
	p, err := strconv.ParseUint(value, 10, 16)
	if err != nil || p == 0 {
		return 0, errors.New("a port is a number from 1 to 65535")
	}
	return uint16(p), nil
}

// ReadNodes reads the list of nodes: one address or name per line, # starts a comment, each name at most once.
func ReadNodes(path string) ([]string, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("IMEX nodes: %w", err)
	}
	var nodes []string
	for n, line := range strings.Split(string(data), "\n") {
		line, _, _ = strings.Cut(line, "#")
		line = strings.TrimSpace(line)
		if line == "" {
			continue
		}
		if strings.ContainsAny(line, " \t") {
			return nil, fmt.Errorf("IMEX nodes %s: line %d: %q has more than one address or name", path, n+1, line)
		}
		if slices.Contains(nodes, line) {
			return nil, fmt.Errorf("IMEX nodes %s: line %d: %s is listed twice", path, n+1, line)
		}
		nodes = append(nodes, line)
	}
	return nodes, nil
}
