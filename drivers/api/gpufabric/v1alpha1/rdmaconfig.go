package v1alpha1

import (
	"k8s.io/apimachinery/pkg/util/validation/field"

	"gpufabric.io/drivers/api/opaque"
)

// RDMAConfig is the opaque configuration of devices of the driver rdma.gpufabric.io:
//
//	{"apiVersion": "gpufabric.io/v1alpha1", "kind": "RDMAConfig", "environment": "None", "network": "Exclusive"}
//
// +kubebuilder:object:generate=false
type RDMAConfig struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	// Environment is the environment that a container gets; NCCL by default.
	Environment RDMAEnvironment `json:"environment,omitempty"`
	// Network is the network namespace of the device; Shared by default.
	Network RDMANetwork `json:"network,omitempty"`
}

// RDMAEnvironment is the environment that a container gets.
type RDMAEnvironment string

// The environments.
const (
	// RDMAEnvironmentNCCL sets NCCL_IB_HCA to the ports of all claims that the claim's pods have when it is prepared.
	RDMAEnvironmentNCCL RDMAEnvironment = "NCCL"
	// RDMAEnvironmentNone sets nothing. It is for a pod that uses a claim which was prepared for another pod: that claim's value lacks
	// the ports of the pod's own claims, and may be the last.
	RDMAEnvironmentNone RDMAEnvironment = "None"
)

// RDMANetwork is the network namespace of a claim's device.
type RDMANetwork string

// The networks.
const (
	// RDMANetworkShared leaves the device in the node's namespace: every pod with its device nodes can use it.
	RDMANetworkShared RDMANetwork = "Shared"
	// RDMANetworkExclusive moves the RDMA device and its network interfaces into the pod.
	RDMANetworkExclusive RDMANetwork = "Exclusive"
)

// Default implements opaque.Config.
func (c *RDMAConfig) Default() {
	if c.Environment == "" {
		c.Environment = RDMAEnvironmentNCCL
	}
	if c.Network == "" {
		c.Network = RDMANetworkShared
	}
}

// Validate implements opaque.Config.
func (c *RDMAConfig) Validate() field.ErrorList {
	var errs field.ErrorList
	if c.Environment != RDMAEnvironmentNCCL && c.Environment != RDMAEnvironmentNone {
		errs = append(errs, field.NotSupported(field.NewPath("environment"), c.Environment,
			[]RDMAEnvironment{RDMAEnvironmentNCCL, RDMAEnvironmentNone}))
	}
	if c.Network != RDMANetworkShared && c.Network != RDMANetworkExclusive {
		errs = append(errs, field.NotSupported(field.NewPath("network"), c.Network, []RDMANetwork{RDMANetworkShared, RDMANetworkExclusive}))
	}
	return errs
}

// DecodeConfig reads an opaque configuration of this package strictly, by the rules of package opaque.
func DecodeConfig(raw []byte) (opaque.Config, error) {
	kinds := map[string]func() opaque.Config{"RDMAConfig": func() opaque.Config { return &RDMAConfig{} }}
	return opaque.Decode(raw, SchemeGroupVersion().String(), kinds, nil)
}
