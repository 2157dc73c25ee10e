// Package explain is the command that shows in which forms each node's GPUs are offered, and by whose choice. For each waiting claim
// for GPUs it shows where its form is offered, or could be. It reads the API server and changes nothing.
package explain

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"gpufabric.io/drivers/gpu/devices"
	"gpufabric.io/drivers/node/host"
)

const (
	// apiTimeout bounds all of the command's requests: a person waits for the answer.
	apiTimeout = time.Minute
	// pageSize is how many objects are listed at a time.
	pageSize = 500
	// agent is the command's name in the API server's audit log.
	agent = "gpufabric-doctor"
)

// Command is `gpufabric doctor gpu`.
func Command(h host.Host) *cobra.Command {
	var kubeconfig, claim string
	var asJSON bool
	command := &cobra.Command{
		Use:   "gpu",
		Short: "Say which forms each node's GPUs are offered in, and where a waiting claim's form could be offered",
		Long: "Say which forms each node's GPUs are offered in and by whose word, and of each claim for GPUs that waits where its\n" +
			"form is, or could be had. It lists nodes, resourceslices, resourceclaims and deviceclasses with the rights of whoever\n" +
			"runs it. A pod that asks for nvidia.com/gpu in its resources has no claim while it waits.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := context.WithTimeout(cmd.Context(), apiTimeout)
			defer cancel()
			reach, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
			if kubeconfig == "" {
				reach, err = h.Kubernetes()
			}
			if err != nil {
				return fmt.Errorf("find an API server (--kubeconfig, KUBECONFIG or a pod's service account): %w", err)
			}
			client, err := host.Client(host.Tune(reach, agent), agent)
			if err != nil {
				return err
			}
			cluster, err := Read(ctx, client, claim)
			if err != nil {
				return err
			}
			answer := Explain(cluster)
			if claim != "" {
				answer.Waiting = only(answer.Waiting, claim)
			}
			if asJSON {
				encoder := json.NewEncoder(h.Out())
				encoder.SetIndent("", "  ")
				return encoder.Encode(answer)
			}
			_, err = fmt.Fprint(h.Out(), answer)
			return err
		},
	}
	command.Flags().StringVar(&kubeconfig, "kubeconfig", "", "kubeconfig of the cluster; empty: KUBECONFIG, else the pod's service account")
	command.Flags().StringVar(&claim, "claim", "", "explain this claim alone, as NAMESPACE/NAME")
	command.Flags().BoolVar(&asJSON, "json", false, "write JSON")
	return command
}

func only(all []Claim, name string) []Claim {
	for _, c := range all {
		if c.Name == name {
			return []Claim{c}
		}
	}
	return nil
}

// Cluster is the data for an answer.
type Cluster struct {
	Nodes   []corev1.Node
	Slices  []resourceapi.ResourceSlice // of the GPU driver
	Claims  []resourceapi.ResourceClaim
	Classes map[string]*resourceapi.DeviceClass
}

// Read lists the data. A claim that is named must exist and wait; otherwise the error gives its state.
func Read(ctx context.Context, client kubernetes.Interface, claim string) (*Cluster, error) {
	c := &Cluster{Classes: map[string]*resourceapi.DeviceClass{}}
	for page := (metav1.ListOptions{Limit: pageSize}); ; {
		list, err := client.CoreV1().Nodes().List(ctx, page)
		if err != nil {
			return nil, fmt.Errorf("list the nodes: %w", err)
		}
		c.Nodes = append(c.Nodes, list.Items...)
		if page.Continue = list.Continue; page.Continue == "" {
			break
		}
	}
	for page := (metav1.ListOptions{Limit: pageSize, FieldSelector: "spec.driver=" + devices.Driver}); ; {
		list, err := client.ResourceV1().ResourceSlices().List(ctx, page)
		if err != nil {
			return nil, fmt.Errorf("list the ResourceSlices of %s: %w", devices.Driver, err)
		}
		c.Slices = append(c.Slices, list.Items...)
		if page.Continue = list.Continue; page.Continue == "" {
			break
		}
	}
	for page := (metav1.ListOptions{Limit: pageSize}); ; {
		list, err := client.ResourceV1().ResourceClaims(metav1.NamespaceAll).List(ctx, page)
		if err != nil {
			return nil, fmt.Errorf("list the ResourceClaims: %w", err)
		}
		c.Claims = append(c.Claims, list.Items...)
		if page.Continue = list.Continue; page.Continue == "" {
			break
		}
	}
	classes, err := client.ResourceV1().DeviceClasses().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list the DeviceClasses: %w", err)
	}
	for i := range classes.Items {
		c.Classes[classes.Items[i].Name] = &classes.Items[i]
	}
	return c, c.check(claim)
}

// check reports why there is nothing to explain about a claim.
func (c *Cluster) check(name string) error {
	if name == "" {
		return nil
	}
	namespace, _, ok := strings.Cut(name, "/")
	if !ok || namespace == "" {
		return fmt.Errorf("--claim %q: want NAMESPACE/NAME", name)
	}
	for i := range c.Claims {
		claim := &c.Claims[i]
		if claim.Namespace+"/"+claim.Name != name {
			continue
		}
		if claim.Status.Allocation != nil {
			var has []string
			for _, r := range claim.Status.Allocation.Devices.Results {
				has = append(has, fmt.Sprintf("%s of pool %s", r.Device, r.Pool))
			}
			return fmt.Errorf("claim %s is not waiting: it has %s", name, strings.Join(has, ", "))
		}
		return nil
	}
	return fmt.Errorf("there is no claim %s: a claim of a template has the name that the pod's status.resourceClaimStatuses gives", name)
}
