module gpufabric.io/fakes

go 1.26.0

require (
	github.com/NVIDIA/go-nvml v0.13.4-0
	github.com/google/go-cmp v0.7.0
	github.com/prometheus/procfs v0.21.1
	github.com/spf13/cobra v1.10.2
	go.yaml.in/yaml/v3 v3.0.5
	golang.org/x/sys v0.48.0
)

require (
	github.com/google/uuid v1.6.0 // indirect
	github.com/inconshreveable/mousetrap v1.1.0 // indirect
	github.com/spf13/pflag v1.0.10 // indirect
	golang.org/x/sync v0.23.0 // indirect
)
