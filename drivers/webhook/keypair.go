package webhook

import (
	"context"
	"crypto/tls"
	"fmt"
	"path/filepath"
	"sync/atomic"
	"time"

	"k8s.io/klog/v2"

	"gpufabric.io/drivers/node/filewatch"
)

// rereadInterval is how often the certificate is read without a change of its directory, as in controller-runtime. Its own reader
// of certificates fails where no inotify instance is available.
const rereadInterval = 10 * time.Second

// keyPair is the certificate and key in a directory, as last read.
type keyPair struct {
	directory string
	pair      atomic.Pointer[tls.Certificate]
}

func (c *keyPair) read() error {
	pair, err := tls.LoadX509KeyPair(filepath.Join(c.directory, "tls.crt"), filepath.Join(c.directory, "tls.key"))
	if err != nil {
		return fmt.Errorf("read the webhook's certificate (--cert-dir): %w", err)
	}
	c.pair.Store(&pair)
	return nil
}

// get is for tls.Config.GetCertificate.
func (c *keyPair) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	if err := c.ready(); err != nil {
		return nil, err
	}
	return c.pair.Load(), nil
}

// ready fails until there is a certificate.
func (c *keyPair) ready() error {
	if c.pair.Load() == nil {
		return fmt.Errorf("%s (--cert-dir) does not have tls.crt and tls.key yet: the controller writes them into the Secret that is mounted "+
			"there, and the kubelet brings them within two minutes", c.directory)
	}
	return nil
}

// follow reads the pair again when its directory changes, until ctx ends. Where it cannot be read, or its two files do not belong
// together yet, the last pair stays.
func (c *keyPair) follow(ctx context.Context, files *filewatch.Watcher) {
	changed := files.Contents(ctx, c.directory)
	tick := time.NewTicker(rereadInterval)
	defer tick.Stop()
	for {
		if err := c.read(); err != nil && c.pair.Load() != nil {
			klog.FromContext(ctx).Error(err, "The last certificate stays")
		} else if err != nil {
			klog.FromContext(ctx).Info("Waiting for a certificate", "err", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-tick.C:
		}
	}
}
