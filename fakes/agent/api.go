package agent

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
)

// API reads nodes and FabricFaults from a Kubernetes API server, with nothing but net/http: the agent's image stays small.
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
		return nil, fmt.Errorf("%s/ca.crt has no certificate", serviceAccount)
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
		Name   string            `json:"name"`
		Labels map[string]string `json:"labels"`
		// Created is of the form 2006-01-02T15:04:05Z, which sorts by time.
		Created string `json:"creationTimestamp"`
	} `json:"metadata"`
	Spec struct {
		Taints []struct {
			Key string `json:"key"`
		} `json:"taints"`
	} `json:"spec"`
}

const nodesPath = "/api/v1/nodes"

// WatchLabels calls fn with the node's labels now and after each change, until fn fails, the server ends the watch or ctx ends.
func (a *API) WatchLabels(ctx context.Context, name string, fn func(map[string]string) error) error {
	labels := func(object json.RawMessage) error {
		var n node
		if err := json.Unmarshal(object, &n); err != nil {
			return err
		}
		return fn(n.Metadata.Labels)
	}
	err := a.watch(ctx, nodesPath, byName(name), func(nodes []json.RawMessage) error {
		if len(nodes) != 1 {
			return errors.New("there is no such node; NODE_NAME must be the Kubernetes node's name")
		}
		return labels(nodes[0])
	}, func(kind string, object json.RawMessage) error {
		if kind == "DELETED" {
			return errors.New("the node was deleted")
		}
		return labels(object)
	})
	return fmt.Errorf("watch node %s: %w", name, err)
}

func byName(name string) url.Values { return url.Values{"fieldSelector": {"metadata.name=" + name}} }

// nodeExists reports whether the cluster has a node of that name.
func (a *API) nodeExists(ctx context.Context, name string) (bool, error) {
	nodes, err := a.list(ctx, nodesPath, byName(name))
	return len(nodes.Items) > 0, err
}

// nodes lists the cluster's nodes.
func (a *API) nodes(ctx context.Context) ([]node, error) {
	found, err := a.list(ctx, nodesPath, nil)
	if err != nil {
		return nil, err
	}
	nodes := make([]node, len(found.Items))
	for i, item := range found.Items {
		if err := json.Unmarshal(item, &nodes[i]); err != nil {
			return nil, fmt.Errorf("read %s: %w", nodesPath, err)
		}
	}
	return nodes, nil
}

// list is the answer to a list request.
type list struct {
	Metadata struct {
		ResourceVersion string `json:"resourceVersion"`
	} `json:"metadata"`
	Items []json.RawMessage `json:"items"`
}

func (a *API) list(ctx context.Context, path string, query url.Values) (list, error) {
	var l list
	answer, err := a.do(ctx, http.MethodGet, path, query, "", nil)
	if err != nil {
		return l, err
	}
	defer func() { _ = answer.Close() }() // only read from
	if err := json.NewDecoder(answer).Decode(&l); err != nil {
		return l, fmt.Errorf("read %s: %w", path, err)
	}
	return l, nil
}

// watch calls listed with the objects at path, then changed with each ADDED, MODIFIED and DELETED one, until the server ends the watch, ctx
// ends or one of the two returns an error. The error is never nil.
func (a *API) watch(ctx context.Context, path string, query url.Values, listed func([]json.RawMessage) error,
	changed func(kind string, object json.RawMessage) error) error {
	now, err := a.list(ctx, path, query)
	if err != nil {
		return err
	}
	if err := listed(now.Items); err != nil {
		return err
	}
	watching := url.Values{"watch": {"true"}, "resourceVersion": {now.Metadata.ResourceVersion}}
	maps.Copy(watching, query)
	stream, err := a.do(ctx, http.MethodGet, path, watching, "", nil)
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
			return err
		}
		switch event.Type {
		case "ADDED", "MODIFIED", "DELETED":
			if err := changed(event.Type, event.Object); err != nil {
				return err
			}
		case "ERROR":
			return fmt.Errorf("the server ended the watch: %s", event.Object)
		}
	}
}

// do sends a request; content is the type of the body.
func (a *API) do(ctx context.Context, method, path string, query url.Values, content string, body []byte) (io.ReadCloser, error) {
	r, err := http.NewRequestWithContext(ctx, method, a.Server+path+"?"+query.Encode(), bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	if content != "" {
		r.Header.Set("Content-Type", content)
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
		return nil, fmt.Errorf("%s %s answers %s: %s", method, path, response.Status, text)
	}
	return response.Body, nil
}
