package smi_test

import (
	"errors"
	"strings"
	"testing"

	"gpufabric.io/fakes/smi"
)

// The answers are those of driver 580.159.04 on an H200 of a virtual machine, which has none of these; help and -grs in the fake's words.
func TestSubcommandsAnswerAsOnAMachineWithoutThem(t *testing.T) {
	root := render(t, "h200-hgx")
	for command, want := range map[string]string{
		"c2c":                                "No Devices support C2C.\n",
		"c2c -s":                             "No Devices support C2C.\n",
		"conf-compute -f":                    "CC status: OFF\n",
		"conf-compute -grs":                  "not-ready\n",
		"conf-compute -i 0 --get-cc-feature": "CC status: OFF\n",
		"vgpu":                               "No supported devices in vGPU mode\n",
		"vgpu -q -i 3":                       "No supported devices in vGPU mode\n",
		"power-smoothing":                    "power-smoothing",
		"power-smoothing -h":                 "power-smoothing",
		"--help":                             "power-smoothing",
		"c2c --status --id=GPU-that-is-not-there": "",
		"c2c -s -s":                     "",
		"conf-compute":                  "",
		"conf-compute --set-gpus-ready": "",
		"vgpu --kill":                   "",
		"power-smoothing --state 1":     "",
		"power-smoothing -i":            "",
	} {
		t.Run(command, func(t *testing.T) {
			out, err := try(root, strings.Fields(command)...)
			var status smi.StatusError
			switch {
			case want == "":
				if err == nil || errors.As(err, &status) {
					t.Errorf("%v, want a reason; printed %q", err, out)
				}
			case strings.HasPrefix(command, "c2c"):
				if !errors.As(err, &status) || status != 3 || out != want {
					t.Errorf("printed %q with %v, want %q with status 3", out, err, want)
				}
			case err != nil || !strings.Contains(out, want):
				t.Errorf("printed %q with %v, want %q", out, err, want)
			}
		})
	}
}

func TestC2CPrintsTheLinkOfEachGPUOfAGraceMachine(t *testing.T) {
	out := run(t, render(t, "gb200-nvl72"), "c2c", "-s", "-i", "1")
	if lines := strings.Split(out, "\n"); len(lines) != 3 || !strings.HasPrefix(lines[0], "GPU 1: NVIDIA GB200") ||
		!strings.Contains(lines[1], "C2C Link 0: 450 GB/s") {
		t.Error(out)
	}
}
