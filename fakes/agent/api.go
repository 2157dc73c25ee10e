package agent

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
)

// API reads nodes from a Kubernetes API server, with nothing but net/http: the agent's image stays small.
type API struct {
	// Server is the base URL.
	Server string
	Client *http.Client
	// Token is called for each request, since mounted tokens are replaced from time to time; nil sends none.
	Token func() (string, error)
}

const serviceAccount = "/var/run/secrets/kubernetes.io/serviceaccount"

// InCluster uses the pod's service account.
func InCluster() (*API, error) {
	host, port := os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT")
	if host == "" || port == "" {
		return nil, errors.New("KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set; the agent runs in a pod")
	}
	pem, err := os.ReadFile(filepath.Join(serviceAccount, "ca.crt"))
	if err != nil {
		return nil, fmt.Errorf("service account: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%s/ca.crt holds no certificate", serviceAccount)
	}
	return &API{
		Server: "https://" + net.JoinHostPort(host, port),
		Client: &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}}},
		Token: func() (string, error) {
			b, err := os.ReadFile(filepath.Join(serviceAccount, "token"))
			return strings.TrimSpace(string(b)), err
		},
	}, nil
}

// node is the part of a Node that is needed.
type node struct {
	Metadata struct {
		Name            string            `json:"name"`
		ResourceVersion string            `json:"resourceVersion"`
		Labels          map[string]string `json:"labels"`
	} `json:"metadata"`
}

// WatchLabels calls fn with the node's labels now and after each change, until the server ends the watch or ctx ends.
func (a *API) WatchLabels(ctx context.Context, name string, fn func(map[string]string)) error {
	query := url.Values{"fieldSelector": {"metadata.name=" + name}}
	list, err := a.get(ctx, query)
	if err != nil {
		return err
	}
	defer func() { _ = list.Close() }() // only read from
	var nodes struct {
		Metadata struct {
			ResourceVersion string `json:"resourceVersion"`
		} `json:"metadata"`
		Items []node `json:"items"`
	}
	if err := json.NewDecoder(list).Decode(&nodes); err != nil {
		return fmt.Errorf("read node %s: %w", name, err)
	}
	if len(nodes.Items) != 1 {
		return fmt.Errorf("there is no node %q; NODE_NAME must be the Kubernetes node's name", name)
	}
	fn(nodes.Items[0].Metadata.Labels)

	query.Set("watch", "true")
	query.Set("resourceVersion", nodes.Metadata.ResourceVersion)
	stream, err := a.get(ctx, query)
	if err != nil {
		return err
	}
	defer func() { _ = stream.Close() }() // only read from
	events := json.NewDecoder(stream)
	for {
		var event struct {
			Type   string          `json:"type"`
			Object json.RawMessage `json:"object"`
		}
		if err := events.Decode(&event); err != nil {
			return fmt.Errorf("watch node %s: %w", name, err)
		}
		var n node
		switch event.Type {
		case "ADDED", "MODIFIED":
			if err := json.Unmarshal(event.Object, &n); err != nil {
				return fmt.Errorf("watch node %s: %w", name, err)
			}
			fn(n.Metadata.Labels)
		case "ERROR", "DELETED":
			return fmt.Errorf("watch node %s: %s: %s", name, event.Type, event.Object)
		}
	}
}

func (a *API) get(ctx context.Context, query url.Values) (io.ReadCloser, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, a.Server+"/api/v1/nodes?"+query.Encode(), nil)
	if err != nil {
		return nil, err
	}
	if a.Token != nil {
		token, err := a.Token()
		if err != nil {
			return nil, fmt.Errorf("service account token: %w", err)
		}
		r.Header.Set("Authorization", "Bearer "+token)
	}
	response, err := a.Client.Do(r)
	if err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(response.Body, 1024)) // as much of the reason as there is
		_ = response.Body.Close()
		return nil, fmt.Errorf("%s answers %s: %s", r.URL.Path, response.Status, text)
	}
	return response.Body, nil
}
