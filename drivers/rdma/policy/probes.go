package policy

import (
	"cmp"

	corev1 "k8s.io/api/core/v1"

	mellanox "gpufabric.io/drivers/api/mellanox/v1alpha1"
)

// Defaults of the network operator's probes, in seconds. A field that is 0 has its default there too. Source: its
// pkg/state/state_ofed.go (setProbesDefaults, sanitizeProbeSpec). 120 failures of the startup probe are from v26.4 on: a driver is
// built for the node's kernel before it is loaded.
var (
	startupDefaults = mellanox.ProbeSpec{InitialDelaySeconds: 30, PeriodSeconds: 10, FailureThreshold: 120, TimeoutSeconds: 10}
	loadedDefaults  = mellanox.ProbeSpec{InitialDelaySeconds: 10, PeriodSeconds: 30, FailureThreshold: 1, TimeoutSeconds: 10}
)

// setProbes gives a driver's container its probes. The driver's images make the file .driver-ready after they loaded it: in the
// directory that they share with the node, and in / before DOCA 24.04 (the network operator's commit a92dae57).
func setProbes(c *corev1.Container, s *mellanox.OFEDDriverSpec) {
	loaded := []string{"grep", "-q", "^mlx5_core ", "/proc/modules"}
	c.StartupProbe = probe(s.StartupProbe, startupDefaults, "test", "-e", "/run/mellanox/drivers/.driver-ready", "-o", "-e", "/.driver-ready")
	c.LivenessProbe = probe(s.LivenessProbe, loadedDefaults, loaded...)
	c.ReadinessProbe = probe(s.ReadinessProbe, loadedDefaults, loaded...)
}

// probe makes a container's probe, which is a command in it.
func probe(given *mellanox.ProbeSpec, defaults mellanox.ProbeSpec, command ...string) *corev1.Probe {
	if given == nil {
		given = &mellanox.ProbeSpec{}
	}
	return &corev1.Probe{
		ProbeHandler:        corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: command}},
		InitialDelaySeconds: cmp.Or(given.InitialDelaySeconds, defaults.InitialDelaySeconds),
		PeriodSeconds:       cmp.Or(given.PeriodSeconds, defaults.PeriodSeconds),
		FailureThreshold:    cmp.Or(given.FailureThreshold, defaults.FailureThreshold),
		TimeoutSeconds:      cmp.Or(given.TimeoutSeconds, defaults.TimeoutSeconds),
	}
}
