// Package mps is a stand-in for CUDA's multi-process service: a control daemon that takes the real one's commands and answers as
// version 550.163.01 does (Debian's package nvidia-cuda-mps, which runs without a GPU). It silently ignores the same commands as
// the real one, and its client succeeds. It shares nothing: it stores its settings, and its server is a process that waits.
package mps

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
)

// Directory names, as the real daemon takes them from the environment.
const (
	PipeVariable = "CUDA_MPS_PIPE_DIRECTORY"
	LogVariable  = "CUDA_MPS_LOG_DIRECTORY"
	DefaultPipe  = "/tmp/nvidia-mps"
	DefaultLog   = "/var/log/nvidia-mps"
)

// Daemon is a control daemon.
type Daemon struct {
	// Pipe is the directory of its socket (named control).
	Pipe string
	// Server is the command that is started as nvidia-cuda-mps-server.
	Server string
	Log    *slog.Logger
	// Listening is called once commands are accepted; nil: no call.
	Listening func()

	mu         sync.Mutex
	percentage string
	limits     map[string]string // pinned memory per device
	perServer  map[int]string
	servers    map[int]*exec.Cmd
	quit       context.CancelFunc
}

// Socket is where the daemon of a pipe directory listens.
func Socket(pipe string) string { return filepath.Join(pipe, "control") }

// Run serves commands until ctx ends or one of them is quit.
func (d *Daemon) Run(ctx context.Context) error {
	ctx, d.quit = context.WithCancel(ctx)
	defer d.quit()
	d.percentage, d.limits, d.servers, d.perServer = "100.0", map[string]string{}, map[int]*exec.Cmd{}, map[int]string{}
	if err := os.MkdirAll(d.Pipe, 0o755); err != nil {
		return fmt.Errorf("%s: %w", PipeVariable, err)
	}
	if conn, err := net.Dial("unix", Socket(d.Pipe)); err == nil {
		_ = conn.Close() // without a request
		return errors.New("an instance of this daemon is already running")
	}
	if err := os.Remove(Socket(d.Pipe)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "unix", Socket(d.Pipe))
	if err != nil {
		return fmt.Errorf("%s: %w", PipeVariable, err)
	}
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer stop()
	var wg sync.WaitGroup
	defer wg.Wait()
	defer d.stopServers()
	d.Log.Info("Start control daemon", "pipe", d.Pipe)
	if d.Listening != nil {
		d.Listening()
	}
	for {
		conn, err := l.Accept()
		if err != nil {
			return nil // the context ended, or quit closed it
		}
		wg.Go(func() { d.serve(ctx, conn) })
	}
}

func (d *Daemon) serve(ctx context.Context, conn net.Conn) {
	defer func() { _ = conn.Close() }() // the asker has its answers
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	lines := bufio.NewScanner(conn)
	for lines.Scan() {
		answer := d.do(strings.Fields(lines.Text()))
		if _, err := io.WriteString(conn, answer); err != nil {
			return
		}
	}
}

// do runs one command; its answer ends in a newline, or is empty.
func (d *Daemon) do(words []string) string {
	if len(words) == 0 {
		return ""
	}
	d.Log.Info("command", "words", words)
	d.mu.Lock()
	defer d.mu.Unlock()
	argument := func(i int) string {
		if i < len(words) {
			return words[i]
		}
		return ""
	}
	switch words[0] {
	case "get_server_list":
		return d.list()
	case "start_server":
		return d.start()
	case "shutdown_server":
		return d.shutdown(argument(1))
	case "get_server_status":
		if pid, err := strconv.Atoi(argument(1)); err == nil && d.servers[pid] != nil {
			return "ACTIVE\n"
		}
		return fmt.Sprintf("Server %s not found\n", argument(1))
	case "get_client_list":
		if pid, err := strconv.Atoi(argument(1)); err == nil && d.servers[pid] != nil {
			return ""
		}
		return fmt.Sprintf("Server %s not found\n", argument(1))
	case "set_default_active_thread_percentage":
		return d.setPercentage(argument(1))
	case "get_default_active_thread_percentage":
		return d.percentage + "\n"
	case "get_active_thread_percentage":
		if pid, err := strconv.Atoi(argument(1)); err == nil && d.servers[pid] != nil {
			return d.perServer[pid] + "\n"
		}
		return fmt.Sprintf("Server %s not found\n", argument(1))
	case "set_default_device_pinned_mem_limit":
		d.setLimit(argument(1), argument(2))
		return ""
	case "get_default_device_pinned_mem_limit":
		if v, ok := d.limits[argument(1)]; ok {
			return v + "\n"
		}
		return ""
	case "quit": // and -t SECONDS
		d.quit()
		return ""
	}
	return fmt.Sprintf("Unknown command %q\n", words[0])
}

// setLimit sets a limit in mebibytes or, with a G, gibibytes. Whole gibibytes are kept as such, rounded down. A value that is no
// limit removes the limit. A device that is named by its UUID removes the first device's limit.
func (d *Daemon) setLimit(device, limit string) {
	n, err := strconv.Atoi(device)
	if err != nil {
		delete(d.limits, "0")
		return
	}
	if n < 0 || n > 63 {
		return
	}
	delete(d.limits, device)
	number, unit := strings.TrimRight(limit, "MG"), strings.TrimLeft(limit, "0123456789")
	n, err = strconv.Atoi(number)
	switch {
	case err != nil || n <= 0:
	case unit == "G":
		d.limits[device] = number + "G"
	case n >= 1024:
		d.limits[device] = strconv.Itoa(n/1024) + "G"
	default:
		d.limits[device] = number + "M"
	}
}

func (d *Daemon) setPercentage(text string) string {
	v, err := strconv.ParseFloat(text, 64)
	if err == nil && v > 0 && v <= 100 { // otherwise it answers with the present value
		d.percentage = strconv.FormatFloat(v, 'f', 1, 64)
	}
	return d.percentage + "\n"
}

func (d *Daemon) list() string {
	var b strings.Builder
	for pid := range d.servers {
		fmt.Fprintln(&b, pid)
	}
	return b.String()
}

// start runs the server, which runs until it is shut down.
func (d *Daemon) start() string {
	cmd := exec.Command(d.Server) //nolint:noctx // stopServers ends it
	if err := cmd.Start(); err != nil {
		return fmt.Sprintf("cannot start the server: %v\n", err)
	}
	d.servers[cmd.Process.Pid], d.perServer[cmd.Process.Pid] = cmd, d.percentage
	d.Log.Info("Starting new server", "pid", cmd.Process.Pid)
	return ""
}

func (d *Daemon) shutdown(pid string) string {
	n, err := strconv.Atoi(pid)
	if err != nil || d.servers[n] == nil {
		return fmt.Sprintf("Server %s not found\n", pid)
	}
	end(d.servers[n])
	delete(d.servers, n)
	return ""
}

func (d *Daemon) stopServers() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, s := range d.servers {
		end(s)
	}
}

func end(cmd *exec.Cmd) {
	_ = cmd.Process.Kill() // it may have ended by itself
	_ = cmd.Wait()         // it was killed on purpose
}

// Send sends commands to the daemon of a pipe directory, one per line, and copies its answers. When ctx ends it returns, even if it
// is still reading commands.
func Send(ctx context.Context, pipe string, commands io.Reader, answers io.Writer) error {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "unix", Socket(pipe))
	if err != nil {
		return fmt.Errorf("cannot find MPS control daemon process: %w", err)
	}
	defer func() { _ = conn.Close() }() // read to its end
	done := make(chan error, 1)
	go func() { done <- talk(conn.(*net.UnixConn), commands, answers) }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done(): // a person at a terminal may never type more
		return ctx.Err()
	}
}

// talk sends commands to their end, then copies the answers.
func talk(conn *net.UnixConn, commands io.Reader, answers io.Writer) error {
	if _, err := io.Copy(conn, commands); err != nil {
		return err
	}
	if err := conn.CloseWrite(); err != nil {
		return err
	}
	_, err := io.Copy(answers, conn)
	return err
}
