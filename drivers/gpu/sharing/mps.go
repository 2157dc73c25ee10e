package sharing

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	specs "tags.cncf.io/container-device-interface/specs-go"

	"gpufabric.io/drivers/api/resource/v1beta1"
)

const (
	// restartPause is the time before a control daemon that ended is started again.
	restartPause = time.Second
	// quitPatience is how long a daemon may take to end when asked, before it is killed.
	quitPatience = 5 * time.Second
	// containerPipes is where a client looks for its daemon.
	containerPipes = "/tmp/nvidia-mps"
)

// MPS runs an MPS control daemon for each claim that asks for one. The daemons are children of this process: when it ends they end, and the
// claims' programs with them; when it starts again it starts them again.
type MPS struct {
	// Dir holds a directory a claim: pipe and log, and shm, which stands for /dev/shm for the daemon and its clients alike. It should be on a
	// tmpfs of the host's (/run/gpufabric/mps).
	Dir string
	// DriverRoot tells where usr/bin/nvidia-cuda-mps-control is: a driver may come after the plugin.
	DriverRoot func() string
	// Command makes the command that runs a program with shm in the place of /dev/shm.
	Command func(shm, program string, args ...string) *exec.Cmd

	mu      sync.Mutex
	daemons map[types.UID]*daemon
}

// Settings are what a claim's daemon is told.
type Settings struct {
	// Devices are UUIDs of GPUs and MIG devices in the order of the claim; an index in the limits counts them.
	Devices []string `json:"devices,omitempty"`
	// Config may be nil.
	Config *v1beta1.MpsConfig `json:"config,omitempty"`
}

// daemon is one control daemon that is kept running.
type daemon struct {
	settings Settings
	stop     context.CancelFunc
	ended    chan struct{} // closed when it is not kept running any more
	settled  chan struct{} // closed when it was set up, or could not be

	mu  sync.Mutex
	err error // before settled is closed why its last run ended, after that why it could not be set up
}

func (d *daemon) note(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.err = err
}

func (d *daemon) noted() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.err
}

func (m *MPS) dir(claim types.UID, name string) string {
	return filepath.Join(m.Dir, string(claim), name)
}

// Edits are what the claim's containers need to be clients.
func (m *MPS) Edits(claim types.UID) specs.ContainerEdits {
	options := []string{"rw", "nosuid", "nodev", "bind"}
	return specs.ContainerEdits{
		Env: []string{"CUDA_MPS_PIPE_DIRECTORY=" + containerPipes},
		Mounts: []*specs.Mount{
			{HostPath: m.dir(claim, "pipe"), ContainerPath: containerPipes, Options: options},
			{HostPath: m.dir(claim, "shm"), ContainerPath: "/dev/shm", Options: options},
		},
	}
}

// Start has a daemon for the claim running and set up when it returns. One that runs with these settings already is left alone, one with others ends.
func (m *MPS) Start(ctx context.Context, claim types.UID, s Settings) error {
	m.mu.Lock()
	old := m.daemons[claim]
	m.mu.Unlock()
	if old != nil && !equality.Semantic.DeepEqual(old.settings, s) {
		m.drop(claim, old)
	}
	return m.Resume(ctx, claim, s)
}

// Resume is Start where any daemon that the claim has already is the right one.
func (m *MPS) Resume(ctx context.Context, claim types.UID, s Settings) error {
	program := m.program()
	if _, err := os.Stat(program); err != nil {
		return fmt.Errorf("MPS needs the driver's control daemon: %w", err)
	}
	for name, mode := range map[string]os.FileMode{"pipe": 0o755, "log": 0o755, "shm": os.ModeSticky | 0o777} {
		if err := errors.Join(os.MkdirAll(m.dir(claim, name), 0o755), os.Chmod(m.dir(claim, name), mode)); err != nil {
			return fmt.Errorf("MPS directories of a claim: %w", err)
		}
	}
	d := m.keep(ctx, claim, s)
	select {
	case <-d.settled:
	case <-d.ended:
		return errors.New("the MPS control daemon was stopped while it was started")
	case <-ctx.Done():
		m.drop(claim, d)
		err := fmt.Errorf("waiting for the MPS control daemon to make %s/control: %w", m.dir(claim, "pipe"), context.Cause(ctx))
		if last := d.noted(); last != nil {
			err = fmt.Errorf("%w; it ended with %w, and its log is in %s", err, last, m.dir(claim, "log"))
		}
		return err
	}
	if err := d.noted(); err != nil {
		m.drop(claim, d)
		return err
	}
	return nil
}

// keep returns the claim's daemon, which it begins to keep running where there is none.
func (m *MPS) keep(ctx context.Context, claim types.UID, s Settings) *daemon {
	m.mu.Lock()
	defer m.mu.Unlock()
	if d := m.daemons[claim]; d != nil {
		return d
	}
	// The daemon outlives the call that started it.
	life, stop := context.WithCancel(context.WithoutCancel(ctx))
	d := &daemon{settings: s, stop: stop, ended: make(chan struct{}), settled: make(chan struct{})}
	if m.daemons == nil {
		m.daemons = map[types.UID]*daemon{}
	}
	m.daemons[claim] = d
	go m.supervise(life, claim, d)
	return d
}

// drop ends a daemon.
func (m *MPS) drop(claim types.UID, d *daemon) {
	m.mu.Lock()
	if m.daemons[claim] == d {
		delete(m.daemons, claim)
	}
	m.mu.Unlock()
	d.stop()
	<-d.ended
}

// supervise keeps the claim's daemon running until ctx ends.
func (m *MPS) supervise(ctx context.Context, claim types.UID, d *daemon) {
	defer close(d.ended)
	log := klog.FromContext(ctx).WithValues("claimUID", claim)
	settled := false
	for first := true; ctx.Err() == nil; first = false {
		if !first {
			select {
			case <-time.After(restartPause):
			case <-ctx.Done():
				return
			}
		}
		err := m.run(ctx, claim, d.settings, func(err error) {
			if settled {
				if err != nil {
					log.Error(err, "MPS control daemon started again, but not set up")
				}
				return
			}
			settled = true
			d.note(err)
			close(d.settled)
		})
		if ctx.Err() == nil {
			log.Error(err, "MPS control daemon ended; its clients' work is lost")
			if !settled {
				d.note(err)
			}
		}
	}
}

// run runs the daemon in the foreground, and calls settled once it was set up, or could not be.
func (m *MPS) run(ctx context.Context, claim types.UID, s Settings, settled func(error)) error {
	control := filepath.Join(m.dir(claim, "pipe"), "control")
	if _, err := os.Stat(control); err == nil {
		// A daemon of an earlier run may still be there.
		asking, cancel := context.WithTimeout(ctx, quitPatience)
		_ = m.tell(asking, claim, s, "quit")
		cancel()
		_ = os.Remove(control)
	}
	var out bytes.Buffer
	cmd := m.Command(m.dir(claim, "shm"), m.program(), "-f")
	cmd.Env = m.environment(claim, s)
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		return err
	}
	over := make(chan error, 1)
	go func() { over <- cmd.Wait() }()
	// Only now: the pipe that is waited for is this daemon's.
	living, dead := context.WithCancel(ctx)
	setUp := make(chan error, 1)
	var waiting sync.WaitGroup
	waiting.Go(func() { setUp <- m.await(living, claim, s) })
	defer waiting.Wait()
	defer dead()
	for {
		select {
		case err := <-over:
			if err == nil {
				err = errors.New("exit status 0")
			}
			return fmt.Errorf("%w: %s", err, firstLine(out.String()))
		case err := <-setUp:
			if ctx.Err() == nil {
				settled(err)
			}
			continue
		case <-ctx.Done():
		}
		break
	}
	// Ask first: a control daemon that is killed leaves its server running.
	asking, cancel := context.WithTimeout(context.WithoutCancel(ctx), quitPatience)
	defer cancel()
	_ = m.tell(asking, claim, s, "quit")
	select {
	case err := <-over:
		return err
	case <-asking.Done():
		_ = cmd.Process.Kill()
		return <-over
	}
}

// await waits until the daemon's control pipe is there, then sets the daemon up.
func (m *MPS) await(ctx context.Context, claim types.UID, s Settings) error {
	pipes := m.dir(claim, "pipe")
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("waiting for the MPS control daemon: %w", err)
	}
	defer func() { _ = watcher.Close() }()
	if err := watcher.Add(pipes); err != nil {
		return fmt.Errorf("waiting for the MPS control daemon: %w", err)
	}
	for {
		if _, err := os.Stat(filepath.Join(pipes, "control")); err == nil {
			return m.configure(ctx, claim, s)
		}
		select {
		case <-watcher.Events:
		case <-ctx.Done():
			return fmt.Errorf("waiting for the MPS control daemon to make %s/control: %w", pipes, context.Cause(ctx))
		}
	}
}

// configure tells the daemon the claim's limits.
func (m *MPS) configure(ctx context.Context, claim types.UID, s Settings) error {
	for _, command := range s.commands() {
		if err := m.tell(ctx, claim, s, command); err != nil {
			return err
		}
	}
	return nil
}

// commands are the settings in the control daemon's words. The general limit comes before those of single devices, which win.
func (s Settings) commands() []string {
	if s.Config == nil {
		return nil
	}
	var out []string
	if p := s.Config.DefaultActiveThreadPercentage; p != nil {
		out = append(out, "set_default_active_thread_percentage "+strconv.Itoa(*p))
	}
	for i, device := range s.Devices {
		limit := s.Config.DefaultPinnedDeviceMemoryLimit
		for _, key := range []string{strconv.Itoa(i), device} {
			if own, ok := s.Config.DefaultPerDevicePinnedMemoryLimit[key]; ok {
				limit = &own
			}
		}
		if limit != nil {
			out = append(out, fmt.Sprintf("set_default_device_pinned_mem_limit %d %dM", i, limit.Value()>>20))
		}
	}
	return out
}

// tell sends one command to a claim's daemon.
func (m *MPS) tell(ctx context.Context, claim types.UID, s Settings, command string) error {
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, m.program())
	cmd.Env = m.environment(claim, s)
	cmd.Stdin = strings.NewReader(command + "\n")
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("telling the MPS control daemon %q: %w: %s", command, err, firstLine(out.String()))
	}
	return nil
}

func (m *MPS) program() string {
	return filepath.Join(m.DriverRoot(), "usr/bin/nvidia-cuda-mps-control")
}

func (m *MPS) environment(claim types.UID, s Settings) []string {
	env := slices.DeleteFunc(os.Environ(), func(e string) bool { return strings.HasPrefix(e, "CUDA_") || strings.HasPrefix(e, "LD_LIBRARY_PATH=") })
	return append(env,
		"CUDA_MPS_PIPE_DIRECTORY="+m.dir(claim, "pipe"), "CUDA_MPS_LOG_DIRECTORY="+m.dir(claim, "log"),
		"CUDA_VISIBLE_DEVICES="+strings.Join(s.Devices, ","), "LD_LIBRARY_PATH="+libraryPath(m.DriverRoot()))
}

// Stop ends a claim's daemon and removes its directories. It may be repeated.
func (m *MPS) Stop(claim types.UID) error {
	m.mu.Lock()
	d := m.daemons[claim]
	m.mu.Unlock()
	if d != nil {
		m.drop(claim, d)
	}
	return os.RemoveAll(filepath.Join(m.Dir, string(claim)))
}

// Close ends every daemon and leaves its directories, for the next run.
func (m *MPS) Close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, d := range m.daemons {
		d.stop()
	}
	for claim, d := range m.daemons {
		<-d.ended
		delete(m.daemons, claim)
	}
}
