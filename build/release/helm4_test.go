//go:build helm4

package release

import "testing"

func TestInstallPageCommandsFetchAndRenderAReleaseWithHelm4(t *testing.T) {
	fetchesAndRenders(t, "helm4")
}

func TestInstallPageCommandRefusesAnotherSignerWithHelm4(t *testing.T) {
	refusesAnotherSigner(t, "helm4")
}
