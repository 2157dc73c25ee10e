package explain

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"gpufabric.io/drivers/node/host"
	"gpufabric.io/drivers/rdma/config"
	"gpufabric.io/drivers/rdma/pool"
)

// apiTimeout bounds a request to the API server: a person waits for the answer.
const apiTimeout = 10 * time.Second

// agent is the command's name in the API server's audit log.
const agent = "gpufabric-doctor"

// file reads config.json; nil: there is none. If a file that was named does not exist, it reports that on h.Err.
func (o *options) file(h host.Host) (*config.Config, error) {
	content, err := os.ReadFile(o.config)
	if errors.Is(err, os.ErrNotExist) {
		if o.named {
			fmt.Fprintf(h.Err(), "There is no file %s: no pools are read from --config.\n", o.config)
		}
		return nil, nil //nolint:nilnil // no file means no pools, as for the plugin
	}
	if err != nil {
		return nil, fmt.Errorf("--config: %w", err)
	}
	parsed, err := config.Parse(content)
	if parsed == nil {
		return nil, fmt.Errorf("%s cannot be used:\n%w", o.config, err)
	}
	if err != nil {
		// As the plugin does, the other entries are served.
		fmt.Fprintf(h.Err(), "%s has mistakes, and these entries are not served:\n%v\n", o.config, err)
	}
	return parsed, nil
}

// listing reads the RDMAPools, from the manifest where one is given, else from the API server. Where it cannot reach an API server
// it reports that on h.Err, and returns none.
func (o *options) listing(ctx context.Context, h host.Host, in io.Reader) (*pool.Listing, error) {
	switch {
	case o.manifest != "" && o.kubeconfig != "":
		return nil, errors.New("--manifest and --kubeconfig: RDMAPools come from a file or from an API server; give one of them")
	case o.manifest == "" && o.labels != "":
		return nil, errors.New("--node-labels needs --manifest; the API server has the labels of the node that --node-name names")
	case o.manifest != "":
		return o.fromManifest(in)
	case !o.rdmaPools:
		return &pool.Listing{}, nil
	}
	reach, err := o.reach(h)
	if err != nil {
		if o.kubeconfig != "" || o.insist {
			return nil, fmt.Errorf("RDMAPools: %w", err)
		}
		fmt.Fprintf(h.Err(), "RDMAPools are left out: %v. Give --kubeconfig or --manifest to have them.\n", err)
		return &pool.Listing{}, nil
	}
	if o.node == "" {
		return nil, errors.New("--node-name is empty: RDMAPools select nodes by labels, so the name of this node's Node object is needed (or " +
			"NODE_NAME); --rdma-pools=false excludes them")
	}
	reach = host.Tune(reach, agent)
	reach.Timeout = apiTimeout
	core, err := host.Client(reach, agent)
	if err != nil {
		return nil, err
	}
	client, err := pool.NewClient(reach, core, o.node)
	if err != nil {
		return nil, err
	}
	listing, err := client.List(ctx)
	if err != nil {
		return nil, fmt.Errorf("%w (--rdma-pools=false excludes RDMAPools, --manifest FILE reads them from a file)", err)
	}
	return listing, nil
}

func (o *options) reach(h host.Host) (*rest.Config, error) {
	if o.kubeconfig == "" {
		return h.Kubernetes()
	}
	reach, err := clientcmd.BuildConfigFromFlags("", o.kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("read --kubeconfig %s: %w", o.kubeconfig, err)
	}
	return reach, nil
}

func (o *options) fromManifest(in io.Reader) (*pool.Listing, error) {
	content, err := o.readManifest(in)
	if err != nil {
		return nil, fmt.Errorf("manifest: %w", err)
	}
	manifest, err := pool.ReadManifest(content)
	if err != nil {
		return nil, fmt.Errorf("manifest %s cannot be used:\n%w", o.manifest, err)
	}
	var given map[string]string
	if o.labels != "" {
		if given, err = labels.ConvertSelectorToLabelsMap(o.labels); err != nil {
			return nil, fmt.Errorf("--node-labels %q are not labels, such as a=b,c=d: %w", o.labels, err)
		}
	}
	listing, err := manifest.Listing(o.node, given)
	if err != nil {
		return nil, fmt.Errorf("manifest %s: %w", o.manifest, err)
	}
	return listing, nil
}

func (o *options) readManifest(in io.Reader) ([]byte, error) {
	if o.manifest == "-" {
		return io.ReadAll(in)
	}
	return os.ReadFile(o.manifest)
}
