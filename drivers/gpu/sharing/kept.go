package sharing

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"gpufabric.io/drivers/node/unixsocket"
)

// keeperPause is the time between two looks for a keeper that does not run yet.
const keeperPause = time.Second

// Kept requests daemons from the node's Keeper.
type Kept struct {
	// Dir is the Keeper's.
	Dir string
}

var _ Daemons = Kept{}

// Start implements Daemons.
func (k Kept) Start(ctx context.Context, claim types.UID, s Settings) error {
	return k.put(ctx, claim, url.Values{"at": {Now().String()}}, s)
}

// Resume implements Daemons. It waits for a keeper that does not run yet: after a boot the two start at the same time.
func (k Kept) Resume(ctx context.Context, claim types.UID, s Settings) error {
	query := url.Values{"at": {Now().String()}, "resume": {""}} // the claim exists now, but may be gone when a keeper comes
	err := whenThere(ctx, func() error { return k.put(ctx, claim, query, s) })
	if refused(err, http.StatusConflict) {
		return nil // the claim was prepared again or released in between
	}
	return err
}

// Stop implements Daemons. Where no keeper runs, the claim's daemon has ended with it, and only its directory is left.
func (k Kept) Stop(ctx context.Context, claim types.UID) error {
	err := k.ask(ctx, http.MethodDelete, "/claims/"+string(claim), url.Values{"at": {Now().String()}}, nil)
	if !away(err) {
		return err
	}
	soon, cancel := context.WithTimeout(ctx, 2*lockPause)
	defer cancel()
	if err := os.MkdirAll(k.Dir, 0o755); err != nil {
		return err
	}
	unlock, err := lock(soon, k.Dir)
	if err != nil {
		return err // a keeper that is about to listen
	}
	defer unlock()
	return directory{dir: k.Dir, claim: claim}.remove()
}

// Retain implements Daemons. It waits for a keeper as Resume does.
func (k Kept) Retain(ctx context.Context, at Moment, claims []types.UID) error {
	text, err := json.Marshal(claims)
	if err != nil {
		return err
	}
	return whenThere(ctx, func() error { return k.ask(ctx, http.MethodPut, "/claims", url.Values{"at": {at.String()}}, text) })
}

func (k Kept) put(ctx context.Context, claim types.UID, query url.Values, s Settings) error {
	text, err := json.Marshal(s)
	if err != nil {
		return err
	}
	return k.ask(ctx, http.MethodPut, "/claims/"+string(claim), query, text)
}

// whenThere retries until a keeper answers.
func whenThere(ctx context.Context, ask func() error) error {
	for {
		err := ask()
		if !away(err) {
			return err
		}
		select {
		case <-time.After(keeperPause):
		case <-ctx.Done():
			return err
		}
	}
}

// refusal is an answer of the keeper other than success.
type refusal struct {
	code    int
	message string
}

func (r *refusal) Error() string { return r.message }

func refused(err error, code int) bool {
	var r *refusal
	return errors.As(err, &r) && r.code == code
}

// away reports whether an error means that no keeper listens.
func away(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED)
}

// ask sends one request on a new connection: requests are few.
func (k Kept) ask(ctx context.Context, method, path string, query url.Values, body []byte) error {
	transport := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return unixsocket.Dial(ctx, socketIn(k.Dir))
	}}
	request, err := http.NewRequestWithContext(ctx, method, "http://keeper"+path+"?"+query.Encode(), bytes.NewReader(body))
	if err != nil {
		return err
	}
	response, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		return fmt.Errorf("request an MPS control daemon at %s (is the DaemonSet gpufabric-mps-keeper's pod running on this node?): %w",
			socketIn(k.Dir), err)
	}
	defer func() { _ = response.Body.Close() }() // read as far as it is of use
	if response.StatusCode == http.StatusOK {
		return nil
	}
	message, err := io.ReadAll(io.LimitReader(response.Body, 4096))
	return errors.Join(&refusal{code: response.StatusCode, message: strings.TrimSpace(string(message))}, err)
}

// Alive reports why the keeper of a directory does not answer, nil where it does.
func (k Kept) Alive(ctx context.Context) error {
	return k.ask(ctx, http.MethodGet, "/healthz", nil, nil)
}
