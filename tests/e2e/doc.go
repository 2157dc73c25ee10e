// Package e2e holds the end-to-end tests: a real kind cluster whose workers carry fake GB200s, the drivers installed by `terraform apply`
// of examples/terraform/quickstart, compute domains, and the seed's manifest without a byte changed. They need Docker; `make kind-e2e` runs
// them.
//
// The cluster is removed at the end, except where GPUFABRIC_KEEP_CLUSTER is set. A failure writes the nodes' and pods' logs under
// tests/logs.
package e2e
