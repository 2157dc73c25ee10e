package plugin

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"time"

	"gpufabric.io/drivers/gpu/fabricpartition"
	"gpufabric.io/drivers/gpu/programs"
	"gpufabric.io/drivers/hardware/nvfm"
	"gpufabric.io/drivers/hardware/pci"
)

// partitions makes the keeper of Fabric Manager's partitions; nil: they are not used.
func (s *starter) partitions(p *plugin) (*fabricpartition.Keeper, error) {
	o := p.options
	if o.FabricManager == "" {
		return nil, nil
	}
	journal, err := fabricpartition.OpenJournal(p.stateFile("fabric-partitions.json"), s.tuning.writer)
	if err != nil {
		p.events.Report("StateUnreadable", err.Error())
	}
	if journal == nil {
		return nil, fmt.Errorf("%w: %w", errNotYet, err)
	}
	keeper := &fabricpartition.Keeper{Manager: s.tuning.fabric, Journal: journal, Modules: p.modules}
	if keeper.Manager == nil {
		keeper.Manager = &nvfm.Client{Address: o.FabricManager, Open: func() (string, error) {
			return o.Driver().Locate().Root.Shared(nvfm.Library)
		}}
	}
	if s.tuning.modules != nil {
		keeper.Modules = s.tuning.modules
	}
	return keeper, nil
}

// modules reads the module IDs of the GPUs that NVIDIA's driver has, by nvidia-smi: NVML in this process would keep GPUs open.
func (p *plugin) modules(ctx context.Context) (map[pci.Address]int, error) {
	cmd, err := p.programs.Command(ctx, programs.Share{Mountpoint: p.stateFile("root")}, "nvidia-smi", "-q")
	if err != nil {
		return nil, err
	}
	var out, problems bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &problems
	cmd.WaitDelay = time.Second
	if err := cmd.Run(); err != nil {
		line, _, _ := strings.Cut(strings.TrimSpace(problems.String()+out.String()), "\n")
		return nil, fmt.Errorf("%w: %s", programs.Explain(err), line)
	}
	return fabricpartition.ParseModules(out.String()), nil
}
