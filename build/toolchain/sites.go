package toolchain

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// ReleasesVariable names the environment variable with the source of published files of tools. Unset: from their projects'
// own sites. A URL: from a mirror, which has the file of https://HOST/PATH at URL/HOST/PATH. "off": from nowhere, so that what is
// missing is built.
const ReleasesVariable = "GPUFABRIC_RELEASES"

// A site that cannot be reached must cost seconds, because every tool can be built without it.
const (
	connectPatience = 3 * time.Second  // name, connection and TLS, each
	answerPatience  = 10 * time.Second // from the request to the answer's header
)

// A download that brings less than leastBytes in a window is aborted: building is as fast.
const (
	paceWindow = 15 * time.Second
	leastBytes = 2 << 20
)

// sites reads published files over HTTP.
type sites struct {
	mirror string // URL without a slash at its end; empty: the projects' own sites
	lock   lock   // nil: no lock, the checksum beside each file counts
	client *http.Client
	window time.Duration
	least  int64

	unreachable map[string]error // hosts that did not answer, by name: they are not tried again
}

// newSites reads the variable. It returns nil where nothing is to be fetched.
func newSites(setting string, locked lock) (*sites, error) {
	s := &sites{lock: locked, window: paceWindow, least: leastBytes, unreachable: map[string]error{}}
	switch {
	case setting == "off":
		return nil, nil
	case setting != "":
		u, err := url.Parse(setting)
		if err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") {
			return nil, fmt.Errorf("%s=%q: give the URL of a mirror, such as https://mirror.example/releases, or off", ReleasesVariable, setting)
		}
		s.mirror = strings.TrimRight(setting, "/")
	}
	s.client = &http.Client{
		Transport: &http.Transport{
			Proxy:                 http.ProxyFromEnvironment,
			DialContext:           (&net.Dialer{Timeout: connectPatience}).DialContext,
			TLSHandshakeTimeout:   connectPatience,
			ResponseHeaderTimeout: answerPatience,
			ForceAttemptHTTP2:     true,
		},
		CheckRedirect: func(req *http.Request, via []*http.Request) error {
			if via[0].URL.Scheme == "https" && req.URL.Scheme != "https" {
				return fmt.Errorf("it redirects from HTTPS to %s", req.URL.Redacted())
			}
			if len(via) >= 10 {
				return errors.New("it redirects ten times")
			}
			return nil
		},
	}
	return s, nil
}

// sitesFromEnvironment is newSites with this process's environment.
func sitesFromEnvironment(lockFile string) (*sites, error) {
	locked, err := readLock(lockFile)
	if err != nil {
		return nil, err
	}
	return newSites(os.Getenv(ReleasesVariable), locked)
}

// place is where a published URL is read from.
func (s *sites) place(address string) string {
	if s.mirror == "" {
		return address
	}
	_, rest, _ := strings.Cut(address, "://")
	return s.mirror + "/" + rest
}

// get requests a URL. The caller closes the answer's body.
func (s *sites) get(ctx context.Context, address string) (*http.Response, error) {
	from := s.place(address)
	host := hostOf(from)
	if err := s.unreachable[host]; err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, from, nil)
	if err != nil {
		return nil, err
	}
	answer, err := s.client.Do(req)
	if err != nil {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		var request *url.Error
		if errors.As(err, &request) {
			err = request.Err // without the URL: the host is enough
		}
		err = fmt.Errorf("%s cannot be reached (%w)", host, err)
		s.unreachable[host] = err
		return nil, err
	}
	if answer.StatusCode != http.StatusOK {
		_ = answer.Body.Close()
		return nil, fmt.Errorf("%s answers %s", from, answer.Status)
	}
	return answer, nil
}

// read returns a short text.
func (s *sites) read(ctx context.Context, address string, most int64) (string, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, s.window, fmt.Errorf("%s did not come in %s", s.place(address), s.window))
	defer cancel()
	answer, err := s.get(ctx, address)
	if err != nil {
		return "", err
	}
	defer func() { _ = answer.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(answer.Body, most))
	if err != nil {
		return "", fmt.Errorf("read %s: %w", s.place(address), cause(ctx, err))
	}
	return string(text), nil
}

// download writes a file to target and returns its SHA-256. It gives up a file that comes too slowly.
func (s *sites) download(ctx context.Context, address, target string, line progress) (sum string, err error) {
	ctx, give := context.WithCancelCause(ctx)
	defer give(nil)
	answer, err := s.get(ctx, address)
	if err != nil {
		return "", err
	}
	defer func() { _ = answer.Body.Close() }()
	file, err := os.OpenFile(target, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o644)
	if err != nil {
		return "", err
	}
	line.start(fmt.Sprintf("fetching %s from %s", size(answer.ContentLength), hostOf(s.place(address))))
	began := time.Now()
	body := &paced{r: io.LimitReader(answer.Body, largestFile)}
	stop := s.pace(body, give)
	sum, n, err := fileSum(file, body)
	stop()
	err = errors.Join(cause(ctx, err), file.Close())
	switch {
	case errors.Is(err, io.ErrUnexpectedEOF):
		err = fmt.Errorf("%s was cut off after %d of %d bytes", s.place(address), n, answer.ContentLength)
	case err != nil:
		err = fmt.Errorf("read %s: %w", s.place(address), err)
	}
	if err != nil {
		line.end("failed")
		return "", err
	}
	line.end(fmt.Sprintf("%.0f s", time.Since(began).Seconds()))
	return sum, nil
}

// cause returns why ctx ended instead of err, where that was the reason for err.
func cause(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

func size(bytes int64) string {
	if bytes < 0 {
		return "a file of unknown size"
	}
	return fmt.Sprintf("%.1f MB", float64(bytes)/1e6)
}

// paced counts the bytes that are read.
type paced struct {
	r    io.Reader
	read atomic.Int64 // bytes since the last query
}

func (p *paced) Read(b []byte) (int, error) {
	n, err := p.r.Read(b)
	p.read.Add(int64(n))
	return n, err
}

// pace calls give when too little arrives in a window of time, until stop is called.
func (s *sites) pace(p *paced, give context.CancelCauseFunc) (stop func()) {
	ended := make(chan struct{})
	var group sync.WaitGroup
	group.Go(func() {
		windows := time.NewTicker(s.window)
		defer windows.Stop()
		for {
			select {
			case <-ended:
				return
			case <-windows.C:
			}
			if n := p.read.Swap(0); n < s.least {
				give(fmt.Errorf("only %d bytes came in %s", n, s.window))
				return
			}
		}
	})
	return func() { close(ended); group.Wait() }
}
