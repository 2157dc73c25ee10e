package imex

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

const devices = "Character devices:\n  1 mem\n195 nvidia\n234 nvidia-caps-imex-channels\n235 nvidia-caps\n\nBlock devices:\n  7 loop\n " +
	"99 nvidia-caps-imex-channels\n"

func procOf(t *testing.T, devices, capability string) FS {
	t.Helper()
	dir := t.TempDir()
	write := func(name, text string) {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("devices", devices)
	if capability != "" {
		write(managementFile, capability)
	}
	return FS{ProcDevices: filepath.Join(dir, "devices")}
}

func TestChannelHasTheMajorOfTheCharacterDevices(t *testing.T) {
	t.Parallel()
	device, err := procOf(t, devices, "").Channel(7)
	want := Device{Path: "/dev/nvidia-caps-imex-channels/channel7", Major: 234, Minor: 7}
	if err != nil || device != want {
		t.Errorf("got %+v, %v; want %+v", device, err, want)
	}
}

func TestManagementDeviceHasItsCapabilitysMinor(t *testing.T) {
	t.Parallel()
	device, err := procOf(t, devices, "DeviceFileMinor: 4\nDeviceFileMode: 256\nDeviceFileModify: 1\n").Management()
	want := Device{Path: "/dev/nvidia-caps/nvidia-cap4", Major: 235, Minor: 4}
	if err != nil || device != want {
		t.Errorf("got %+v, %v; want %+v", device, err, want)
	}
}

func TestFilesThatAreMissingAreNamed(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		fs       FS
		noDriver bool
		call     func(FS) error
	}{
		"no channels among the character devices": {procOf(t, "Character devices:\n  1 mem\n\nBlock devices:\n 99 nvidia-caps-imex-channels\n",
			""), true,
			func(f FS) error { _, err := f.Channel(0); return err }},
		"no capability file": {procOf(t, devices, ""), true,
			func(f FS) error { _, err := f.Management(); return err }},
		"a capability without a minor": {procOf(t, devices, "DeviceFileMode: 256\n"), false,
			func(f FS) error { _, err := f.Management(); return err }},
		"a capability with a broken minor": {procOf(t, devices, "DeviceFileMinor: four\n"), false,
			func(f FS) error { _, err := f.Management(); return err }},
		"a broken major": {procOf(t, "Character devices:\nxx nvidia-caps-imex-channels\n", ""), false,
			func(f FS) error { _, err := f.Channel(0); return err }},
		"a channel beyond the last": {procOf(t, devices, ""), false,
			func(f FS) error { _, err := f.Channel(Channels); return err }},
		"no devices file": {FS{ProcDevices: filepath.Join(t.TempDir(), "devices")}, false,
			func(f FS) error { _, err := f.Channel(0); return err }},
	} {
		t.Run(name, func(t *testing.T) {
			if err := c.call(c.fs); err == nil || errors.Is(err, ErrNoDriver) != c.noDriver {
				t.Errorf("error %v, ErrNoDriver wanted: %v", err, c.noDriver)
			}
		})
	}
}

func TestDevicesHaveTheirNumbers(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		devices string
		major   int64
	}{
		"a driver of today": {"Character devices:\n195 nvidia\n195 nvidiactl\n195 nvidia-modeset\n", 195},
		"before 550":        {"Character devices:\n194 nvidia-frontend\n", 194},
	} {
		t.Run(name, func(t *testing.T) {
			fs := procOf(t, c.devices, "")
			for address, text := range map[string]string{
				"0000:09:00.0": "Model: \t\t NVIDIA GB200\nDevice Minor: \t 1\nGPU Excluded:\t No\n",
				"0000:08:00.0": "Model: \t\t NVIDIA GB200\nDevice Minor: \t 0\n",
			} {
				dir := filepath.Join(filepath.Dir(fs.ProcDevices), gpusDir, address)
				if err := os.MkdirAll(dir, 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(filepath.Join(dir, "information"), []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			gpus, err := fs.GPUs()
			want := []Device{{"/dev/nvidia0", c.major, 0}, {"/dev/nvidia1", c.major, 1}}
			if err != nil || !slices.Equal(gpus, want) {
				t.Errorf("got %+v, %v; want %+v", gpus, err, want)
			}
			control, err := fs.Control()
			if err != nil || control != (Device{"/dev/nvidiactl", c.major, 255}) {
				t.Errorf("control device %+v, %v", control, err)
			}
		})
	}
	if _, err := procOf(t, devices, "").GPUs(); !errors.Is(err, ErrNoDriver) {
		t.Errorf("without a loaded driver: %v", err)
	}
}
