package imexd

import (
	"strings"
	"testing"
	"time"

	"gpufabric.io/drivers/hardware/imex"
)

func TestSupervisorDoesNotStartWithoutACertificate(t *testing.T) {
	supervised(t, func(t *testing.T, s *Supervisor, r *fakeRunner) {
		s.spec.Certificates = &imex.Certificates{Dir: t.TempDir(), Name: "u.imex"}
		s.Join(two())
		pass(time.Second)
		if len(r.started) != 0 {
			t.Error("nvidia-imex runs without a certificate")
		}
		if status, _ := s.Status(); status.Ready || !strings.Contains(status.Reason, "tls.crt") {
			t.Errorf("%+v", status)
		}
	})
}

func TestConfigurationNamesTheCertificateForBothSides(t *testing.T) {
	spec, err := imex.NewSpec("/d", "/etc/hosts", "10.0.0.1", 50000, 50005)
	if err != nil {
		t.Fatal(err)
	}
	if plain := string(configFile(spec)); strings.Contains(plain, "AUTH") {
		t.Errorf("without certificates:\n%s", plain)
	}
	spec.Certificates = &imex.Certificates{Dir: "/c", Name: "u.imex"}
	lines := string(configFile(spec))
	for _, want := range []string{"IMEX_ENABLE_AUTH_ENCRYPTION=1", "IMEX_AUTH_ENCRYPTION_MODE=SSL_TLS", "IMEX_AUTH_SOURCE=FILE",
		"IMEX_SERVER_KEY=/c/tls.key", "IMEX_SERVER_CERT=/c/tls.crt", "IMEX_SERVER_CERT_AUTH=/c/ca.crt", "IMEX_CLIENT_KEY=/c/tls.key",
		"IMEX_CLIENT_CERT=/c/tls.crt", "IMEX_CLIENT_CERT_AUTH=/c/ca.crt", "IMEX_SECURITY_TARGET_OVERRIDE=u.imex"} {
		if !strings.Contains(lines, want+"\n") {
			t.Errorf("no %s in\n%s", want, lines)
		}
	}
}
