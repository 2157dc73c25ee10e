package fabric

import (
	"fmt"
	"os"
	"path/filepath"

	"gpufabric.io/build/repository"
	clusterprogram "gpufabric.io/drivers/program/cluster"
	nodeprogram "gpufabric.io/drivers/program/node"
	"gpufabric.io/tests/simcluster/cluster"
	"gpufabric.io/tests/simcluster/simnode"
)

// Mode describes how the containers of gpufabric's image run.
type Mode string

const (
	// AsGoroutines runs them in the simulator, with fakes in Go: a thousand nodes fit in a machine.
	AsGoroutines Mode = "goroutines"
	// AsProcesses runs them as processes of the programs in bin, with the fake C library and the fake nvidia-imex. That is the most
	// realistic mode without containers, for about one rack. It needs `make build`.
	AsProcesses Mode = "processes"
	// Sampled runs the controller and the first node's roles as processes, whose memory can be read, and the rest as goroutines.
	Sampled Mode = "sampled"
)

// Modes lists all modes.
func Modes() []Mode { return []Mode{AsGoroutines, AsProcesses, Sampled} }

// Setup is a cluster's hardware and the runtime of its containers.
type Setup struct {
	Hardware cluster.Hardware
	Runtime  simnode.Runtime
	// Messages are those of the IMEX daemons that run as goroutines.
	Messages *Messages
}

// New makes the setup of a cluster of nodes of a profile (a name or a file).
func New(mode Mode, profileName string, nodes int) (Setup, error) {
	switch mode {
	case AsGoroutines:
		hardware, err := hardware(profileName, nodes, built{})
		runtime := newGoroutines(nodes)
		return Setup{Hardware: hardware, Runtime: runtime, Messages: runtime.messages}, err
	case AsProcesses, Sampled:
		assets, err := findBuilt()
		if err != nil {
			return Setup{}, err
		}
		setup := Setup{Messages: &Messages{}, Runtime: &processes{bin: assets.bin}}
		if mode == Sampled {
			played := newGoroutines(nodes)
			setup.Messages = played.messages
			setup.Runtime = &sampled{goroutines: played, processes: &processes{bin: assets.bin}}
		}
		setup.Hardware, err = hardware(profileName, nodes, assets)
		return setup, err
	}
	return Setup{}, fmt.Errorf("containers as %q: a simulated cluster runs them as one of %v", mode, Modes())
}

// built are the files of this checkout's build that processes need; empty for goroutines.
type built struct {
	bin        string // directory of the programs; few clusters have gpufabric-scheduler, and it need not be built for the others
	libraryDir string // of libnvidia-ml.so.1
	tools      string // fakefabric, which is also nvidia-smi and nvidia-imex
}

func findBuilt() (built, error) {
	root, err := repository.Root()
	if err != nil {
		return built{}, err
	}
	b := built{
		bin:        filepath.Join(root, "bin"),
		libraryDir: filepath.Join(root, "fakes/build/lib"),
		tools:      filepath.Join(root, "fakes/build/fakefabric"),
	}
	for _, path := range []string{filepath.Join(b.bin, clusterprogram.Name), filepath.Join(b.bin, nodeprogram.Name),
		filepath.Join(b.libraryDir, "libnvidia-ml.so.1"), b.tools} {
		if _, err := os.Stat(path); err != nil {
			return built{}, fmt.Errorf("containers as processes need what `make build` makes: %w", err)
		}
	}
	return b, nil
}
