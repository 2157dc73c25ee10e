package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"gpufabric.io/drivers/gpu/inventory"
)

// sliceWords are nvidia-smi's words for time slices, at their numbers.
var sliceWords = []string{"Default", "Short", "Medium", "Long"}

// setTimeSlice gives a GPU every time slice and then the one that it had.
func setTimeSlice(ctx context.Context, m *machine) (res result) {
	if m.node == nil || len(m.node.GPUs) == 0 {
		return result{state: failed, text: errNoNVML.Error()}
	}
	gpu := m.node.GPUs[0]
	before, err := m.timeSlice(ctx, gpu)
	if err != nil {
		return refused(err)
	}
	defer func() {
		_, err := m.smi(context.WithoutCancel(ctx), "compute-policy", "-i", gpu.UUID, "--set-timeslice", strconv.Itoa(before))
		if err != nil && res.state == ok {
			res = refused(fmt.Errorf("GPU %d does not go back to time slice %s: %w", gpu.Index, sliceWords[before], err))
		}
	}()
	for _, slice := range []int{1, 2, 3, 0} {
		if _, err := m.smi(ctx, "compute-policy", "-i", gpu.UUID, "--set-timeslice", strconv.Itoa(slice)); err != nil {
			return refused(err)
		}
		now, err := m.timeSlice(ctx, gpu)
		if err != nil {
			return refused(err)
		}
		if now != slice {
			return result{state: failed, text: fmt.Sprintf("GPU %d was given time slice %s and has %s", gpu.Index, sliceWords[slice],
				sliceWords[now])}
		}
	}
	return fine("GPU %d takes Short, Medium, Long and Default, and is back at %s", gpu.Index, sliceWords[before])
}

// policyLine is a line of nvidia-smi compute-policy -l: "|   0   Timeslice       Default       |".
var policyLine = regexp.MustCompile(`(?m)^\|\s+\d+\s+Timeslice\s+(\w+)\s*\|`)

func (m *machine) timeSlice(ctx context.Context, gpu *inventory.GPU) (int, error) {
	out, err := m.smi(ctx, "compute-policy", "-i", gpu.UUID, "-l")
	if err != nil {
		return 0, err
	}
	found := policyLine.FindStringSubmatch(out)
	if found == nil || !slices.Contains(sliceWords, found[1]) {
		return 0, fmt.Errorf("nvidia-smi compute-policy -l has no time slice of GPU %d: %q", gpu.Index, out)
	}
	return slices.Index(sliceWords, found[1]), nil
}

// mpsClients is how many programs share the GPU at once.
const mpsClients = 2

// shareByMPS runs an MPS control daemon of its own, two CUDA clients under it, and ends it.
func shareByMPS(ctx context.Context, m *machine) (res result) {
	if m.node == nil || len(m.node.GPUs) == 0 {
		return result{state: failed, text: errNoNVML.Error()}
	}
	gpu := m.node.GPUs[0]
	dir, err := os.MkdirTemp("", "firstday-mps-")
	if err != nil {
		return refused(err)
	}
	defer func() { _ = os.RemoveAll(dir) }() // a temporary directory
	env := []string{"CUDA_MPS_PIPE_DIRECTORY=" + dir, "CUDA_MPS_LOG_DIRECTORY=" + dir}
	start, err := m.command(ctx, "nvidia-cuda-mps-control", "-d")
	if err != nil {
		return missing("%v", err)
	}
	log, err := os.Create(filepath.Join(dir, "start.log")) // no pipe: the daemon that stays would hold it open
	if err != nil {
		return refused(err)
	}
	defer func() { _ = log.Close() }()
	start.Env = append(start.Env, append(env, "CUDA_VISIBLE_DEVICES="+gpu.UUID)...)
	start.Stdout, start.Stderr = log, log
	if err := start.Run(); err != nil {
		said, _ := os.ReadFile(log.Name()) // its output is only an addition
		return refused(fmt.Errorf("start the MPS control daemon: %w: %s", err, bytes.TrimSpace(said)))
	}
	defer func() {
		within, cancel := context.WithTimeout(context.WithoutCancel(ctx), 20*time.Second)
		defer cancel()
		if _, err := m.control(within, env, "quit -t 5"); err != nil && res.state == ok {
			res = refused(fmt.Errorf("the MPS control daemon does not end: %w", err))
		}
	}()
	percentage, err := m.control(ctx, env, "get_default_active_thread_percentage")
	if err != nil {
		return refused(err)
	}
	if _, err := m.control(ctx, env, fmt.Sprintf("start_server -uid %d", os.Getuid())); err != nil {
		return refused(err)
	}
	servers, err := m.holdClients(ctx, gpu, env)
	if err != nil {
		return refused(err)
	}
	if servers == "" {
		return result{state: failed, text: "two clients ran, and the control daemon has no server for them"}
	}
	return fine("%d clients on GPU %d at a time, served by process %s; active thread percentage %s", mpsClients, gpu.Index, servers,
		percentage)
}

// holdClients makes every client hold a context at the same time, and returns the servers of that time.
func (m *machine) holdClients(ctx context.Context, gpu *inventory.GPU, env []string) (servers string, err error) {
	type held struct {
		end  io.Closer
		wait func() error
		out  *bufio.Reader
	}
	var clients []held
	defer func() {
		for i, c := range clients {
			_ = c.end.Close() // this ends the client
			rest, _ := io.ReadAll(c.out)
			var said answer
			failure := errors.Join(said.read(rest), c.wait())
			if failure != nil && err == nil {
				err = fmt.Errorf("MPS client %d of %d: %w", i+1, mpsClients, failure)
			}
		}
	}()
	for i := range mpsClients {
		cmd := m.cudaClient(ctx, gpu, env, "hold")
		in, err := cmd.StdinPipe()
		if err != nil {
			return "", err
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			return "", err
		}
		if err := cmd.Start(); err != nil {
			return "", err
		}
		c := held{end: in, wait: cmd.Wait, out: bufio.NewReader(out)}
		line, err := c.out.ReadString('\n')
		if strings.TrimSpace(line) != "holding" {
			_ = in.Close()
			var said answer
			return "", fmt.Errorf("MPS client %d of %d: %w", i+1, mpsClients, errors.Join(said.read([]byte(line)), err, cmd.Wait()))
		}
		clients = append(clients, c)
	}
	out, err := m.control(ctx, env, "get_server_list")
	return strings.Join(strings.Fields(out), " "), err
}

// control sends a line to the MPS control daemon and returns its answer.
func (m *machine) control(ctx context.Context, env []string, line string) (string, error) {
	cmd, err := m.command(ctx, "nvidia-cuda-mps-control")
	if err != nil {
		return "", err
	}
	cmd.Env = append(cmd.Env, env...)
	cmd.Stdin = strings.NewReader(line + "\n")
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("nvidia-cuda-mps-control: %q: %w: %s", line, err, bytes.TrimSpace(out))
	}
	return strings.TrimSpace(string(out)), nil
}
