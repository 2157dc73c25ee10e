package plugin

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"gpufabric.io/drivers/gpu/devices"
	"gpufabric.io/drivers/gpu/gputest"
	"gpufabric.io/drivers/node/atomicfile"
)

func gpuConfig(sharing string) string {
	return `{"apiVersion":"resource.nvidia.com/v1beta1","kind":"GpuConfig","sharing":` + sharing + `}`
}

// smi puts a stand-in for nvidia-smi under the driver's root that notes how it was called. It returns a function that returns the
// notes.
func smi(t *testing.T, m *gputest.Machine) func() string {
	t.Helper()
	log := m.Path("smi.log")
	script := "#!/bin/sh\necho \"$@\" >> " + log + "\n"
	program := m.Path("driver/usr/bin/nvidia-smi")
	if err := errors.Join(os.WriteFile(program, []byte(script), 0o600), os.Chmod(program, 0o755)); err != nil {
		t.Fatal(err)
	}
	return func() string {
		text, _ := os.ReadFile(log)
		_ = os.Remove(log)
		return strings.TrimSpace(string(text))
	}
}

func TestTimeSliceIsSetAndResetWithTheClaim(t *testing.T) {
	m := gputest.New(t, 1)
	calls := smi(t, m)
	b := newBench(t, m)
	c := b.claim("u1", []string{gpuConfig(`{"strategy":"TimeSlicing","timeSlicingConfig":{"interval":"Long"}}`)}, device{name: "gpu-0"})
	b.mustPrepare(c)
	uuid := m.GPUs[0].UUID
	if got, want := calls(), "compute-policy -i "+uuid+" --set-timeslice 3"; got != want {
		t.Errorf("prepare called nvidia-smi %s, want %s", got, want)
	}
	// A restart in between changes nothing of what unprepare does.
	b.stop()
	b.start()
	if problem := b.unprepare(c); problem != "" {
		t.Error(problem)
	}
	if got, want := calls(), "compute-policy -i "+uuid+" --set-timeslice 0"; got != want {
		t.Errorf("unprepare called nvidia-smi %s, want %s", got, want)
	}
	b.mustPrepare(b.claim("u2", []string{gpuConfig(`{"strategy":"TimeSlicing","timeSlicingConfig":{}}`)}, device{name: "gpu-0"}))
	if got := calls(); got != "" {
		t.Errorf("a claim with nothing to set called nvidia-smi %s", got)
	}
}

func TestOneGPUIsSharedInOneWay(t *testing.T) {
	m := gputest.New(t, 1)
	smi(t, m)
	b := newBench(t, m)
	long := []string{gpuConfig(`{"strategy":"TimeSlicing","timeSlicingConfig":{"interval":"Long"}}`)}
	share := func(id string) device {
		return device{name: "gpu-0-shared", share: id, capacity: map[string]string{"memory": "10Gi", "cores": "30"}}
	}
	first := b.claimFrom(resourceapi.AllocationConfigSourceClass, "u1", long, share("s1"))
	b.mustPrepare(first)
	b.mustPrepare(b.claimFrom(resourceapi.AllocationConfigSourceClass, "u2", long, share("s2")))
	b.stop()
	b.start()
	other := b.claim("u3", nil, share("s3"))
	if _, problem := b.prepare(other); !strings.Contains(problem, "one way") || !strings.Contains(problem, "Long") {
		t.Errorf("another way on the same GPU: %q", problem)
	}
	for _, c := range []string{"u1", "u2"} {
		if problem := b.unprepare(b.get(c)); problem != "" {
			t.Error(problem)
		}
	}
	b.mustPrepare(other)
}

// A GPU has one time slice for all its shares, which must agree on it: a claim that chose it would keep everybody else off the GPU.
func TestShareDoesNotSetTheTimeSliceOfOthers(t *testing.T) {
	m := gputest.New(t, 1)
	calls := smi(t, m)
	b := newBench(t, m)
	share := func(id, memory string) device {
		return device{name: "gpu-0-shared", share: id, capacity: map[string]string{"memory": memory, "cores": "1"}}
	}
	for _, interval := range []string{"Default", "Short", "Medium", "Long"} {
		c := b.claim("attack-"+strings.ToLower(interval),
			[]string{gpuConfig(`{"strategy":"TimeSlicing","timeSlicingConfig":{"interval":"` + interval + `"}}`)}, share("a"+interval, "1Gi"))
		_, problem := b.prepare(c)
		if !strings.Contains(problem, "DeviceClass") || !strings.Contains(problem, "sharing.timeSlicingConfig.interval") {
			t.Errorf("interval %s of a share's own claim: %q", interval, problem)
		}
		t.Logf("attacker sees: %s", problem)
	}
	if got := calls(); got != "" {
		t.Errorf("an attack called nvidia-smi %s", got)
	}
	// The others' shares work as before: without a time slice setting, and with the class's interval beside a claim's plain
	// configuration.
	b.mustPrepare(b.claim("plain", nil, share("s1", "1Gi")))
	if problem := b.unprepare(b.get("plain")); problem != "" {
		t.Error(problem)
	}
	long := gpuConfig(`{"strategy":"TimeSlicing","timeSlicingConfig":{"interval":"Long"}}`)
	c := b.claimFrom(resourceapi.AllocationConfigSourceClass, "class", []string{long}, share("s2", "1Gi"))
	own := c.Status.Allocation.Devices.Config[0]
	own.Source, own.Opaque = resourceapi.AllocationConfigSourceClaim, own.Opaque.DeepCopy()
	own.Opaque.Parameters.Raw = []byte(gpuConfig(`{"strategy":"TimeSlicing"}`))
	c.Status.Allocation.Devices.Config = append(c.Status.Allocation.Devices.Config, own)
	if err := b.client.Tracker().Update(resourceapi.SchemeGroupVersion.WithResource("resourceclaims"), c, c.Namespace); err != nil {
		t.Fatal(err)
	}
	b.mustPrepare(c)
	if got := calls(); !strings.HasSuffix(got, "--set-timeslice 3") {
		t.Errorf("nvidia-smi was called with %q: the class's interval does not hold beside the claim's configuration", got)
	}
}

// slowSMI is a stand-in for nvidia-smi that notes how it was called. It resets the time slice of one GPU only after release.
func slowSMI(t *testing.T, m *gputest.Machine, gpu string) (called func(string) bool, release func()) {
	t.Helper()
	log, gate := m.Path("smi.log"), m.Path("smi.gate")
	script := "#!/bin/sh\necho \"$@\" >> " + log + "\n" +
		"case \"$*\" in *" + gpu + "*\" 0\") while [ ! -e " + gate + " ]; do sleep 0.02; done;; esac\n"
	program := m.Path("driver/usr/bin/nvidia-smi")
	if err := errors.Join(os.WriteFile(program, []byte(script), 0o600), os.Chmod(program, 0o755)); err != nil {
		t.Fatal(err)
	}
	called = func(line string) bool {
		text, _ := os.ReadFile(log)
		return strings.Contains(string(text), line)
	}
	release = func() {
		if err := os.WriteFile(gate, nil, 0o600); err != nil {
			t.Error(err)
		}
	}
	return called, release
}

// A claim that is still busy with one GPU has released the other, and that GPU's last claim resets it.
func TestTheLastOfTwoClaimsThatEndAtOnceSetsTheTimeSliceBack(t *testing.T) {
	for _, slow := range []int{0, 1, 0, 1} { // the order in which a claim's GPUs are reset varies
		m := gputest.New(t, 2)
		called, release := slowSMI(t, m, m.GPUs[slow].UUID)
		b := newBench(t, m)
		long := []string{gpuConfig(`{"strategy":"TimeSlicing","timeSlicingConfig":{"interval":"Long"}}`)}
		share := func(gpu int, id string) device {
			return device{name: fmt.Sprintf("gpu-%d-shared", gpu), share: id, capacity: map[string]string{"memory": "10Gi", "cores": "30"}}
		}
		class := resourceapi.AllocationConfigSourceClass
		both, one := b.claimFrom(class, "u1", long, share(0, "s1"), share(1, "s2")), b.claimFrom(class, "u2", long, share(1-slow, "s3"))
		b.mustPrepare(both)
		b.mustPrepare(one)
		ended := make(chan string, 1)
		go func() { ended <- b.unprepare(both) }()
		back := func(gpu int) string { return "compute-policy -i " + m.GPUs[gpu].UUID + " --set-timeslice 0" }
		b.await(func() bool { return called(back(slow)) }, "the first claim is being ended")
		if problem := b.unprepare(one); problem != "" {
			t.Error(problem)
		}
		release()
		if problem := <-ended; problem != "" {
			t.Error(problem)
		}
		if !called(back(1 - slow)) {
			t.Errorf("GPU %d keeps the time slice of claims that ended", 1-slow)
		}
		b.stop()
	}
}

func TestClaimDoesNotShareWhenItsRecordCannotBeWritten(t *testing.T) {
	m := gputest.New(t, 1)
	smi(t, m)
	b := newBench(t, m)
	b.stop()
	b.writer.Before = func(step atomicfile.Step, path string) error {
		if step == atomicfile.StepSync && filepath.Base(path) == "u1.claim" {
			return errors.New("the disk is full")
		}
		return nil
	}
	b.start()
	first := b.claim("u1", nil, device{name: "gpu-0"})
	if _, problem := b.prepare(first); !strings.Contains(problem, "the disk is full") {
		t.Fatalf("got %q", problem)
	}
	if problem := b.unprepare(first); problem != "" {
		t.Fatal(problem)
	}
	b.mustPrepare(b.claim("u2", []string{gpuConfig(`{"strategy":"TimeSlicing","timeSlicingConfig":{"interval":"Long"}}`)},
		device{name: "gpu-0"}))
}

func TestSharesTellTheirLimitsInTheOrderOfTheAllocation(t *testing.T) {
	b := newBench(t, gputest.New(t, 2))
	c := b.claim("u1", nil,
		device{name: "gpu-1-shared", share: "s1", request: "a", capacity: map[string]string{"memory": "10Gi", "cores": "30"}},
		device{name: "gpu-1-shared", share: "s2", request: "b", capacity: map[string]string{"memory": "512Mi", "cores": "50"}},
	)
	ids := b.mustPrepare(c)
	if len(ids) != 2 || ids[0] == ids[1] {
		t.Fatalf("two shares of one GPU have CDI ids %v", ids)
	}
	first, second := strings.Join(b.edits(c, ids[0]).Env, " "), strings.Join(b.edits(c, ids[1]).Env, " ")
	for _, want := range []string{"CUDA_DEVICE_MEMORY_LIMIT_0=10240m", "CUDA_DEVICE_SM_LIMIT=30"} {
		if !strings.Contains(first, want) {
			t.Errorf("the first share's environment %s lacks %s", first, want)
		}
	}
	// In a container that uses only request b it is the first and only GPU.
	for _, want := range []string{"CUDA_DEVICE_MEMORY_LIMIT_1=512m", "CUDA_DEVICE_MEMORY_LIMIT=512m", "CUDA_DEVICE_SM_LIMIT=50"} {
		if !strings.Contains(second, want) {
			t.Errorf("the second share's environment %s lacks %s", second, want)
		}
	}
}

func TestPluginRefusesAWrongClaimAndContinues(t *testing.T) {
	b := newBench(t, gputest.New(t, 2))
	for name, c := range map[string]struct {
		config string
		device string
		want   string
	}{
		"null":                       {"null", "gpu-0", "apiVersion"},
		"an unknown kind":            {`{"apiVersion":"resource.nvidia.com/v1beta1","kind":"X"}`, "gpu-0", "GpuConfig"},
		"passthrough":                {`{"apiVersion":"resource.nvidia.com/v1beta1","kind":"VfioDeviceConfig"}`, "gpu-0", "virtual machine"},
		"sharing without a strategy": {gpuConfig("{}"), "gpu-0", "sharing.strategy"},
		"a wrong MIG config for a GPU": {`{"apiVersion":"resource.nvidia.com/v1beta1","kind":"MigDeviceConfig","sharing":{}}`, "gpu-0",
			"sharing.strategy"},
		"a device that is not there":  {gpuConfig("null"), "gpu-7", "not on this node"},
		"a MIG profile the GPU lacks": {gpuConfig("null"), "gpu-0-mig-9g90gb-99-0", "not on this node"},
	} {
		t.Run(name, func(t *testing.T) {
			wrong := b.claim("u-"+strings.ReplaceAll(name, " ", "-"), []string{c.config}, device{name: c.device})
			if _, problem := b.prepare(wrong); !strings.Contains(problem, c.want) {
				t.Errorf("got %q, want it to say %s", problem, c.want)
			}
			if problem := b.unprepare(wrong); problem != "" {
				t.Error(problem)
			}
			next := b.claim("next-"+strings.ReplaceAll(name, " ", "-"), nil, device{name: "gpu-0"})
			b.mustPrepare(next)
			if problem := b.unprepare(next); problem != "" {
				t.Error(problem)
			}
		})
	}
}

// A device class's configuration comes before a claim's. Of a claim's configurations the later one counts.
func TestOfConfigurationsThatOverlapTheLaterWins(t *testing.T) {
	m := gputest.New(t, 1)
	calls := smi(t, m)
	b := newBench(t, m)
	slices := func(interval string) string {
		return gpuConfig(`{"strategy":"TimeSlicing","timeSlicingConfig":{"interval":"` + interval + `"}}`)
	}
	c := b.claim("u1", []string{slices("Long"), slices("Short")}, device{name: "gpu-0"})
	// The API lists the class's first, but the driver does not rely on that.
	last := &c.Status.Allocation.Devices.Config
	*last = append(*last, resourceapi.DeviceAllocationConfiguration{
		Source: resourceapi.AllocationConfigSourceClass, DeviceConfiguration: resourceapi.DeviceConfiguration{
			Opaque: &resourceapi.OpaqueDeviceConfiguration{Driver: devices.Driver, Parameters: runtime.RawExtension{Raw: []byte(slices("Medium"))}},
		},
	})
	for i := range 2 {
		c.Spec.Devices.Config = append(c.Spec.Devices.Config,
			resourceapi.DeviceClaimConfiguration{DeviceConfiguration: (*last)[i].DeviceConfiguration})
	}
	if err := b.client.Tracker().Update(resourceapi.SchemeGroupVersion.WithResource("resourceclaims"), c, c.Namespace); err != nil {
		t.Fatal(err)
	}
	b.mustPrepare(c)
	if got, want := calls(), "compute-policy -i "+m.GPUs[0].UUID+" --set-timeslice 1"; got != want {
		t.Errorf("prepare called nvidia-smi %s, want %s", got, want)
	}
}

// fickleSMI is a stand-in for nvidia-smi that notes how it was called, and fails to reset a time slice while broken is set.
func fickleSMI(t *testing.T, m *gputest.Machine) (calls func() string, broken func(bool)) {
	t.Helper()
	log, gate := m.Path("smi.log"), m.Path("smi.broken")
	script := "#!/bin/sh\necho \"$@\" >> " + log + "\ncase \"$*\" in *\" 0\") [ ! -e " + gate +
		" ] || { echo Unable to set timeslice; exit 15; };; esac\n"
	program := m.Path("driver/usr/bin/nvidia-smi")
	if err := errors.Join(os.WriteFile(program, []byte(script), 0o600), os.Chmod(program, 0o755)); err != nil {
		t.Fatal(err)
	}
	calls = func() string {
		text, _ := os.ReadFile(log)
		_ = os.Remove(log)
		return strings.TrimSpace(string(text))
	}
	broken = func(yes bool) {
		err := os.Remove(gate)
		if yes {
			err = os.WriteFile(gate, nil, 0o600)
		}
		if err != nil {
			t.Error(err)
		}
	}
	return calls, broken
}

func TestUnprepareSucceedsWhenTheTimeSliceCannotBeReset(t *testing.T) {
	m := gputest.New(t, 1)
	calls, broken := fickleSMI(t, m)
	b := newBench(t, m)
	long := []string{gpuConfig(`{"strategy":"TimeSlicing","timeSlicingConfig":{"interval":"Long"}}`)}
	first := b.claim("u1", long, device{name: "gpu-0"})
	b.mustPrepare(first)
	broken(true)
	if problem := b.unprepare(first); problem != "" {
		t.Fatalf("the pod of the claim stays, since %s", problem)
	}
	b.event("Node", "TimeSliceNotReset")
	// A claim with another kind of sharing than the last claim's gets the GPU, though it cannot be reset yet.
	second := b.claim("u2", nil, device{name: "gpu-0"})
	b.mustPrepare(second)
	if problem := b.unprepare(second); problem != "" {
		t.Fatal(problem)
	}
	b.stop()
	b.start()
	broken(false)
	calls()
	b.mustPrepare(b.claim("u3", nil, device{name: "gpu-0"}))
	if got, want := calls(), "compute-policy -i "+m.GPUs[0].UUID+" --set-timeslice 0"; got != want {
		t.Errorf("the claim after the mend called nvidia-smi %q, want %q", got, want)
	}
}

// The public quickstart's gpu-test5 on nodes without nvidia-smi.
func TestATimeSliceOnANodeWithoutNvidiaSMIIsRefusedAndThePodGoes(t *testing.T) {
	m := gputest.New(t, 1)
	if err := os.Remove(m.Path("driver/usr/bin/nvidia-smi")); err != nil {
		t.Fatal(err)
	}
	b := newBench(t, m)
	c := b.claim("u1", []string{gpuConfig(`{"strategy":"TimeSlicing","timeSlicingConfig":{"interval":"Long"}}`)}, device{name: "gpu-0"})
	if _, problem := b.prepare(c); !strings.Contains(problem, "nvidia-smi") || !strings.Contains(problem, "hardware.driverRoot") {
		t.Errorf("it is refused with %q", problem)
	}
	if problem := b.unprepare(c); problem != "" {
		t.Fatalf("the pod of the claim stays, since %s", problem)
	}
	b.mustPrepare(b.claim("u2", nil, device{name: "gpu-0"}))
}

// refusingSMI puts a stand-in for nvidia-smi under the driver's root that refuses the UUID in the returned file; calls returns the calls
// since the last call of it.
func refusingSMI(t *testing.T, m *gputest.Machine, answer string) (refuse func(uuid string), calls func() string) {
	t.Helper()
	log, refused := m.Path("smi.log"), m.Path("smi.refused")
	script := "#!/bin/sh\necho \"$@\" >> " + log + "\nif [ \"$3\" = \"$(cat " + refused + ")\" ]; then echo '" + answer + "'; exit 3; fi\n"
	program := m.Path("driver/usr/bin/nvidia-smi")
	if err := errors.Join(os.WriteFile(program, []byte(script), 0o600), os.Chmod(program, 0o755)); err != nil {
		t.Fatal(err)
	}
	refuse = func(uuid string) {
		if err := os.WriteFile(refused, []byte(uuid), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return refuse, func() string {
		text, _ := os.ReadFile(log)
		_ = os.Remove(log)
		return strings.TrimSpace(string(text))
	}
}

// A T4 or P4 refuses every time slice. A claim that was refused changed nothing, so nothing of it is undone, then or later.
func TestTimeSliceIsNeverUndoneWhenItWasRefused(t *testing.T) {
	for _, answer := range []string{"Timeslice is Not Supported", "Insufficient Permissions"} {
		t.Run(answer, func(t *testing.T) {
			m := gputest.New(t, 2)
			refuse, calls := refusingSMI(t, m, answer)
			refuse(m.GPUs[1].UUID)
			b := newBench(t, m)
			c := b.claim("u1", []string{gpuConfig(`{"strategy":"TimeSlicing","timeSlicingConfig":{"interval":"Long"}}`)},
				device{name: "gpu-1"})
			for range 2 { // the kubelet tries again
				if _, problem := b.prepare(c); !strings.Contains(problem, answer) {
					t.Fatalf("it is refused with %q", problem)
				}
			}
			calls()
			b.stop() // the record of the refused claim is all that is left
			b.start()
			if problem := b.unprepare(c); problem != "" {
				t.Fatal(problem)
			}
			b.mustPrepare(b.claim("u2", nil, device{name: "gpu-1"}))
			if got := calls(); got != "" {
				t.Errorf("a time slice that was never set is undone: nvidia-smi %s", got)
			}
			if _, err := os.Stat(filepath.Join(b.options.StateDir, "sharing-left.json")); err == nil {
				t.Error("it is recorded for later claims")
			}
		})
	}
}

// The GPU has no time slices any more, as with another driver. They are forgotten with the next claim, which is not reported as shared.
func TestTimeSliceIsForgottenWhenTheGPUHasNone(t *testing.T) {
	m := gputest.New(t, 1)
	refuse, calls := refusingSMI(t, m, "Not Supported")
	refuse("none")
	b := newBench(t, m)
	first := b.claim("u1", []string{gpuConfig(`{"strategy":"TimeSlicing","timeSlicingConfig":{"interval":"Long"}}`)}, device{name: "gpu-0"})
	b.mustPrepare(first)
	program := m.Path("driver/usr/bin/nvidia-smi")
	text, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(program, []byte("#!/bin/sh\nexit 1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if problem := b.unprepare(first); problem != "" {
		t.Fatal(problem)
	}
	b.event("Node", "TimeSliceNotReset")
	refuse(m.GPUs[0].UUID)
	if err := os.WriteFile(program, text, 0o600); err != nil {
		t.Fatal(err)
	}
	calls()
	for _, uid := range []string{"u2", "u3"} {
		c := b.claim(uid, nil, device{name: "gpu-0"})
		b.mustPrepare(c)
		if problem := b.unprepare(c); problem != "" {
			t.Fatal(problem)
		}
	}
	if got := calls(); strings.Count(got, "--set-timeslice 0") != 1 {
		t.Errorf("nvidia-smi was called %q, want one try", got)
	}
}
