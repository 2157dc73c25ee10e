package plugin

import (
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"gpufabric.io/drivers/node/filewatch"
	"gpufabric.io/drivers/rdma/config"
)

func TestConfigurationKeepsTheLastValidFile(t *testing.T) {
	parse := func(interval int, resource string) fileContent {
		c, err := config.Parse([]byte(fmt.Sprintf(`{"periodicUpdateInterval": %d, "configList": [{"resourceName": %q, "rdmaHcaMax": 2,
			"selectors": {"vendors": ["15b3"]}}]}`, interval, resource)))
		return fileContent{c, err}
	}
	c := newConfiguration("config.json", &filewatch.Watcher{})
	if c.rescan() != defaultRescan {
		t.Errorf("without a file devices are discovered every %s", c.rescan())
	}
	for _, step := range []struct {
		name   string
		file   fileContent
		rescan time.Duration
		pools  int
	}{
		{"there is no file", fileContent{err: os.ErrNotExist}, defaultRescan, 0},
		{"a good one", parse(20, "a"), 20 * time.Second, 1},
		{"one that cannot be read", fileContent{err: errors.New("unexpected end of JSON input")}, 20 * time.Second, 1},
		{"it was removed", fileContent{err: os.ErrNotExist}, 20 * time.Second, 1},
		{"another good one", parse(0, "b"), 0, 1},
	} {
		c.take(t.Context(), step.file)
		pools := 0
		if c.good != nil {
			pools = len(c.good.Pools)
		}
		if c.rescan() != step.rescan || pools != step.pools {
			t.Errorf("%s: devices are discovered every %s, %d pools", step.name, c.rescan(), pools)
		}
	}
}
