package imex

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"time"
)

// answer is the control channel's message to a client before it closes the connection.
type answer struct {
	Local  State  `json:"local"`
	Self   string `json:"self"`
	Status Status `json:"status"`
}

// commandEndpoint is the network and address of the control channel.
func (c Config) commandEndpoint() (network, address string) {
	if c.CommandSocket != "" {
		return "unix", c.CommandSocket
	}
	host := "127.0.0.1"
	switch {
	case c.CommandAddress.IsValid():
		host = c.CommandAddress.String()
	case c.BindAddress.IsValid() && c.BindAddress.IsLoopback():
		host = c.BindAddress.String() // simulated nodes share one machine
	}
	return "tcp", net.JoinHostPort(host, fmt.Sprint(c.CommandPort))
}

// serveCommands opens the control channel and answers on it until ctx ends.
func (d *Daemon) serveCommands(ctx context.Context, wg *sync.WaitGroup) error {
	if !d.config.CommandEnabled {
		return nil
	}
	network, address := d.config.commandEndpoint()
	if network == "unix" {
		if err := removeSocket(ctx, address); err != nil {
			return fmt.Errorf("IMEX control socket (IMEX_CMD_UNIX_DOMAIN_PATH): %w", err)
		}
	}
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, network, address)
	if err != nil {
		return fmt.Errorf("IMEX control channel (IMEX_CMD_PORT, IMEX_CMD_UNIX_DOMAIN_PATH): %w", err)
	}
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	wg.Go(func() {
		defer stop()
		for {
			conn, err := l.Accept()
			if err != nil {
				return // only closing the listener ends it
			}
			wg.Go(func() { d.answerCommand(ctx, conn) })
		}
	})
	return nil
}

// removeSocket removes a socket that a killed daemon left, since the next one could not listen there. Anything else at the path
// stays.
func removeSocket(ctx context.Context, path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if info.Mode()&os.ModeSocket == 0 {
		return fmt.Errorf("%s exists and is not a socket; give another path", path)
	}
	var dialer net.Dialer
	if conn, err := dialer.DialContext(ctx, "unix", path); err == nil {
		_ = conn.Close() // there was no request
		return fmt.Errorf("another daemon answers there (%s); end it, or give another path", path)
	}
	return os.Remove(path)
}

// Question is a query to a daemon.
type Question string

// The questions.
const (
	OfDaemon Question = "daemon" // -q: its own state
	OfDomain Question = "domain" // -N, -n: all nodes
)

// silent reports whether a fault keeps the daemon from answering.
func (d *Daemon) silent(q Question) bool {
	who := d.options.Faults().Silent
	return who == "*" || who == "-N" && q == OfDomain
}

func (d *Daemon) answerCommand(ctx context.Context, conn net.Conn) {
	defer func() { _ = conn.Close() }() // the client has its answer or is gone
	release := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer release()
	requests := bufio.NewReader(conn)
	line, err := requests.ReadString('\n')
	if err != nil {
		return
	}
	question := Question(strings.TrimSpace(line))
	if d.silent(question) {
		_, _ = requests.ReadByte() // until the asker gives up
		return
	}
	s := d.own()
	if question != OfDaemon {
		s = d.Status() // grows with the square of the domain
	}
	if err := conn.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		return
	}
	if err := json.NewEncoder(conn).Encode(answer{Local: s.Local, Self: s.Self, Status: s}); err != nil {
		d.options.Log.Warn("a query was not answered", "error", err)
	}
}

// Query queries the daemon that was started with this configuration. Only ctx bounds how long that takes. The answer to OfDaemon has no
// nodes.
func Query(ctx context.Context, c Config, q Question) (Status, error) {
	network, address := c.commandEndpoint()
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, network, address)
	if err != nil {
		return Status{Local: StateUnavailable}, fmt.Errorf("no IMEX daemon answers: %w", err)
	}
	defer func() { _ = conn.Close() }() // only read from
	release := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer release()
	if _, err := fmt.Fprintln(conn, q); err != nil {
		return Status{Local: StateUnavailable}, fmt.Errorf("IMEX daemon at %s: %w", address, err)
	}
	var a answer
	if err := json.NewDecoder(conn).Decode(&a); err != nil {
		return Status{Local: StateUnavailable}, fmt.Errorf("IMEX daemon at %s: %w", address, err)
	}
	a.Status.Local, a.Status.Self = a.Local, a.Self
	return a.Status, nil
}
