package release

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"helm.sh/helm/v3/pkg/registry"
)

const (
	// pullTimeout bounds the download of a chart, which is some 100 KB.
	pullTimeout = 2 * time.Minute
	// pullLimit bounds each answer of a registry or web server, in bytes.
	pullLimit = 32 << 20
)

// remote reports whether a chart is on the network.
func remote(from string) bool {
	return registry.IsOCI(from) || strings.HasPrefix(from, "https://") || strings.HasPrefix(from, "http://")
}

// download returns the archive at oci://REGISTRY/PATH:TAG or https://HOST/PATH.tgz. A digest after it is compared: @sha256:HEX of the
// manifest in a registry, #sha256=HEX of the archive at a web server.
func download(ctx context.Context, from string) ([]byte, error) {
	address, err := url.Parse(from)
	if err != nil || address.Host == "" {
		return nil, errors.New("chart is not an address of a chart: write oci://REGISTRY/PATH:VERSION or https://HOST/PATH.tgz")
	}
	if address.User != nil {
		return nil, fmt.Errorf("chart %s names a user: log in with `helm registry login` instead, the address is stored in the state",
			address.Redacted())
	}
	if address.Scheme == "http" && !loopback(address.Hostname()) {
		return nil, fmt.Errorf("chart %q would be read unencrypted, and anyone in between could change it: write https", from)
	}
	ctx, cancel := context.WithTimeout(ctx, pullTimeout)
	defer cancel()
	client := &http.Client{Transport: &bounded{ctx, http.DefaultTransport}}
	var archive []byte
	if registry.IsOCI(from) {
		archive, err = pull(client, from, address)
	} else {
		archive, err = get(ctx, client, address)
	}
	if err != nil {
		return nil, fmt.Errorf("read chart %q: %w", from, err)
	}
	return archive, nil
}

// pull reads a chart from a registry, with the login of `helm registry login` or `docker login`.
func pull(client *http.Client, from string, address *url.URL) ([]byte, error) {
	options := []registry.ClientOption{registry.ClientOptHTTPClient(client), registry.ClientOptWriter(io.Discard)}
	if loopback(address.Hostname()) {
		options = append(options, registry.ClientOptPlainHTTP())
	}
	puller, err := registry.NewClient(options...)
	if err != nil {
		return nil, err
	}
	result, err := puller.Pull(from)
	if err != nil {
		return nil, fmt.Errorf("%w. Check path and version, and that `helm registry login %s` was run where the registry needs a login", err,
			address.Host)
	}
	// Helm reads the tag where a reference has both.
	if _, want, given := strings.Cut(from, "@"); given && want != result.Manifest.Digest {
		return nil, fmt.Errorf("its manifest is %s, not the one in the reference: the tag was moved. Write the intended digest",
			result.Manifest.Digest)
	}
	return result.Chart.Data, nil
}

// get reads an archive from a web server.
func get(ctx context.Context, client *http.Client, address *url.URL) ([]byte, error) {
	algorithm, want, given := strings.Cut(address.Fragment, "=")
	if address.Fragment != "" && (!given || algorithm != "sha256") {
		return nil, fmt.Errorf("#%s is not a digest: write #sha256=HEX", address.Fragment)
	}
	plain := *address
	plain.Fragment = ""
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, plain.String(), nil)
	if err != nil {
		return nil, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close() //nolint:errcheck // read-only
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("the server answered %s", resp.Status)
	}
	archive, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, err
	}
	if sum := sha256.Sum256(archive); given && !strings.EqualFold(want, hex.EncodeToString(sum[:])) {
		return nil, fmt.Errorf("its SHA-256 is %x, not the one in the address", sum)
	}
	return archive, nil
}

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// bounded ends every request with ctx, which Helm's client does not take, and every answer at pullLimit.
type bounded struct {
	ctx  context.Context //nolint:containedctx // of one download
	next http.RoundTripper
}

func (b *bounded) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Scheme != "https" && !loopback(r.URL.Hostname()) { // a redirect, or the address of a registry's logins
		return nil, fmt.Errorf("%s leads to %s, which is unencrypted: anyone in between could change the chart", r.Host, r.URL.Redacted())
	}
	resp, err := b.next.RoundTrip(r.WithContext(b.ctx))
	if err == nil {
		resp.Body = http.MaxBytesReader(nil, resp.Body, pullLimit)
	}
	return resp, err
}
