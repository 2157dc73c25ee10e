package plugin

import (
	"context"
	"errors"
	"os"
	"time"

	"k8s.io/klog/v2"

	"gpufabric.io/drivers/node/filewatch"
	"gpufabric.io/drivers/rdma/config"
)

// configuration is the file of pools. It is read whenever it changes, and the last valid one remains in use.
type configuration struct {
	path  string
	files *filewatch.Watcher
	read  chan fileContent
	// good is the last valid one, nil where there is none. Only the goroutine that takes the results uses it.
	good *config.Config
}

type fileContent struct {
	config *config.Config
	err    error
}

func newConfiguration(path string, files *filewatch.Watcher) *configuration {
	return &configuration{path: path, files: files, read: make(chan fileContent)}
}

// Run reads the file until ctx ends.
func (c *configuration) Run(ctx context.Context) {
	config.Watch(ctx, c.files, c.path, func(content *config.Config, err error) { send(ctx, c.read, fileContent{content, err}) })
}

// rescan is how often devices are discovered without an event; 0: never.
func (c *configuration) rescan() time.Duration {
	if c.good == nil {
		return defaultRescan
	}
	return c.good.Rescan
}

// take returns the usable part of the file.
func (c *configuration) take(ctx context.Context, f fileContent) {
	log := klog.FromContext(ctx)
	switch {
	case f.err == nil:
		log.Info("Read the configuration", "file", c.path, "pools", len(f.config.Pools))
		c.good = f.config
	case errors.Is(f.err, os.ErrNotExist) && c.good == nil:
		log.Info("There is no configuration file; pools come from RDMAPools only", "file", c.path)
	case f.config != nil:
		if c.good != nil {
			f.config.Keep(c.good)
		}
		c.good = f.config
		log.Error(f.err, "Some entries of the configuration are invalid; the others are used, and resources served before stay", "pools",
			len(f.config.Pools))
	case c.good != nil:
		log.Error(f.err, "The configuration cannot be used; the last good one stays")
	default:
		log.Error(f.err, "The configuration cannot be used; there is no earlier one")
	}
}
