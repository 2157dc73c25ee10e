package simnode

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// probe runs the container's probes until ctx is done: startup first, then liveness and readiness side by side. A program that
// fails its startup or liveness probe is killed. As in the kubelet, the first probes run when the pod is first reported with
// its containers, not at the start of the program.
func (c *container) probe(ctx context.Context, run Container, kill context.CancelCauseFunc) {
	select {
	case <-c.worker.told:
	case <-ctx.Done():
		return
	}
	if p := c.spec.StartupProbe; p != nil {
		started := c.repeat(ctx, run, p, func(ok bool) (done bool) {
			if !ok {
				kill(fmt.Errorf("%w: its startup probe failed", ErrKilled))
			}
			return true
		})
		if !started {
			return
		}
		c.set(func() { c.started, c.ready = true, c.spec.ReadinessProbe == nil })
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if p := c.spec.LivenessProbe; p != nil {
			c.repeat(ctx, run, p, func(ok bool) bool {
				if !ok {
					kill(fmt.Errorf("%w: its liveness probe failed", ErrKilled))
				}
				return !ok
			})
		}
	}()
	if p := c.spec.ReadinessProbe; p != nil {
		c.repeat(ctx, run, p, func(ok bool) bool {
			c.set(func() { c.ready = ok })
			return false
		})
	}
	<-done
}

// repeat probes with the probe's period and thresholds and passes on each change of the verdict, the first included, until
// decided returns true; it returns the last verdict. As in the kubelet, the period is from the start of one probe to that of
// the next, and a probe that takes longer is followed by the next at once.
func (c *container) repeat(ctx context.Context, run Container, p *corev1.Probe, decided func(ok bool) bool) bool {
	if !pause(ctx, time.Duration(p.InitialDelaySeconds)*time.Second) {
		return false
	}
	ticker := time.NewTicker(time.Duration(max(p.PeriodSeconds, 1)) * time.Second)
	defer ticker.Stop()
	var verdict, known bool
	successes, failures := int32(0), int32(0)
	for {
		if c.probeOnce(ctx, run, p) == nil {
			successes, failures = successes+1, 0
		} else {
			successes, failures = 0, failures+1
		}
		if ctx.Err() != nil {
			return false
		}
		changed := false
		switch {
		case successes >= max(p.SuccessThreshold, 1) && (!verdict || !known):
			verdict, changed = true, true
		case failures >= max(p.FailureThreshold, 1) && (verdict || !known):
			verdict, changed = false, true
		}
		if changed {
			known = true
			if decided(verdict) {
				return verdict
			}
		}
		select {
		case <-ctx.Done():
			return false
		case <-ticker.C:
		}
	}
}

func (c *container) probeOnce(ctx context.Context, run Container, p *corev1.Probe) error {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(max(p.TimeoutSeconds, 1))*time.Second)
	defer cancel()
	switch {
	case p.Exec != nil:
		return c.worker.node.config.Runtime.Exec(ctx, run, p.Exec.Command)
	case p.HTTPGet != nil:
		return c.get(ctx, p.HTTPGet)
	case p.TCPSocket != nil:
		port, err := c.port(p.TCPSocket.Port)
		if err != nil {
			return err
		}
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", net.JoinHostPort(c.worker.address, port))
		if err != nil {
			return err
		}
		return conn.Close()
	}
	return errors.New("a simulated node supports exec, httpGet and tcpSocket probes only")
}

func (c *container) get(ctx context.Context, action *corev1.HTTPGetAction) error {
	port, err := c.port(action.Port)
	if err != nil {
		return err
	}
	host, scheme := c.worker.address, "http"
	if action.Host != "" {
		host = action.Host
	}
	client := http.DefaultClient
	if action.Scheme == corev1.URISchemeHTTPS {
		// Like the kubelet, it verifies no certificate, and each probe uses a new connection.
		scheme = "https"
		transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true} //nolint:gosec // see above
		client = &http.Client{Transport: transport}
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, scheme+"://"+net.JoinHostPort(host, port)+action.Path, nil)
	if err != nil {
		return fmt.Errorf("make the probe's request: %w", err)
	}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close() //nolint:errcheck // only its status counts
	if response.StatusCode < 200 || response.StatusCode >= 400 {
		return fmt.Errorf("the probe got %s", response.Status)
	}
	return nil
}

func (c *container) port(port intstr.IntOrString) (string, error) {
	if port.Type == intstr.Int {
		return strconv.Itoa(port.IntValue()), nil
	}
	for _, p := range c.spec.Ports {
		if p.Name == port.StrVal {
			return strconv.Itoa(int(p.ContainerPort)), nil
		}
	}
	return "", fmt.Errorf("container %s has no port named %q", c.spec.Name, port.StrVal)
}

// pause waits; false means ctx was done first.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
