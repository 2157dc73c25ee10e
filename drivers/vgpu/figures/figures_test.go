package figures

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

func serve(t *testing.T, path string, f Figures) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- Serve(ctx, path, func() Figures { return f }) }()
	for {
		if _, err := Read(t.Context(), path); err == nil || t.Context().Err() != nil {
			break
		}
	}
	return func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

func TestFiguresAreReadAsWritten(t *testing.T) {
	path := filepath.Join(t.TempDir(), Socket)
	if err := os.WriteFile(path, nil, 0o600); err != nil { // a leftover of an earlier run
		t.Fatal(err)
	}
	want := Figures{Factor: 10, GPUs: []GPU{{Index: 3, UUID: "GPU-1", MemoryUsed: 1 << 30, MemoryTotal: 1 << 35, Utilization: 7}}}
	stop := serve(t, path, want)
	got, err := Read(t.Context(), path)
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v", got, err)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the socket has mode %v, %v", info, err)
	}
	stop()
	if _, err := Read(t.Context(), path); err == nil || !strings.Contains(err.Error(), "request the GPUs' figures") {
		t.Errorf("from nobody: %v", err)
	}
}

func TestFiguresAreNotDelayedByASlowClient(t *testing.T) {
	path := filepath.Join(t.TempDir(), Socket)
	stop := serve(t, path, Figures{Factor: 1})
	for range 50 {
		connection, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = connection.Close() }()
	}
	if _, err := Read(t.Context(), path); err != nil {
		t.Error(err)
	}
	stop()
}

func TestFiguresAreBounded(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"no JSON":   {"hello", "invalid character"},
		"no factor": {`{"gpus": []}`, "the unit of memory is 0 MiB"},
		"no end":    {`{"factor": 1, "gpus": [` + strings.Repeat(`{"uuid": "`+strings.Repeat("x", 1000)+`"},`, 2000), "unexpected EOF"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := decode(strings.NewReader(c.text)); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}
