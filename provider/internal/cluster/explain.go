package cluster

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/version"
)

// ConnectError means that the first request to an API server failed.
type ConnectError struct {
	Host   string
	Source string
	Err    error
}

func (e *ConnectError) Error() string {
	return fmt.Sprintf("reach %s (from %s): %v", e.Host, e.Source, e.Err)
}

func (e *ConnectError) Unwrap() error { return e.Err }

func decodeVersion(raw []byte, into *version.Info) error {
	if err := json.Unmarshal(raw, into); err != nil || into.GitVersion == "" {
		return fmt.Errorf("the answer to GET /version does not come from a Kubernetes API server: %.80q", raw)
	}
	return nil
}

// Explain converts an error of this package or of the API server to a diagnostic's summary and detail: the attempt, its object, the
// reason of the failure, and the remedy. doing is the operation, such as "read ComputeDomain team/rack".
func Explain(doing string, err error) (summary, detail string) {
	var (
		setting  *SettingError
		unknown  *UnknownError
		connect  *ConnectError
		unsigned x509.UnknownAuthorityError
		hostname x509.HostnameError
		invalid  x509.CertificateInvalidError
		network  net.Error
	)
	server := "the API server"
	if errors.As(err, &connect) {
		server = fmt.Sprintf("%s (address from %s)", connect.Host, connect.Source)
	}
	could := fmt.Sprintf("Could not %s. ", doing)
	switch {
	case errors.As(err, &setting):
		return "Invalid provider configuration", could + setting.Detail
	case errors.As(err, &unknown):
		return "Cluster not known yet", could + capitalise(unknown.Error())
	case errors.As(err, &unsigned):
		return "Server certificate not trusted", could + fmt.Sprintf(
			"%s presents a certificate signed by an authority that is not in cluster_ca_certificate or the kubeconfig: %v. "+
				"Give the cluster's own CA (PEM); insecure = true would turn the check off.",
			server,
			unsigned,
		)
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return "Server certificate not valid", could + fmt.Sprintf(
			"%s: %v. Renew the server's certificate, or set the clock of this machine where that is wrong.",
			server,
			rootCause(err),
		)
	case errors.As(err, &hostname), errors.As(err, &invalid):
		return "Server certificate not valid", could + fmt.Sprintf(
			"%s: %v. Use an address that is in the certificate, or set tls_server_name.",
			server,
			rootCause(err),
		)
	case apierrors.IsUnauthorized(err):
		return "Credentials rejected", could + fmt.Sprintf(
			"%s does not accept the credentials (401 Unauthorized): the token or certificate is wrong or has expired. "+
				"Get a new one; an exec block or a kubeconfig with an exec plugin renews it by itself during long applies.",
			server,
		)
	case isCertificateRefused(err):
		return "Credentials rejected", could + fmt.Sprintf(
			"%s refuses the connection: %v. It wants a client certificate that it trusts and that has not expired: set client_certificate and "+
				"client_key, or take a kubeconfig that has one.",
			server,
			rootCause(err),
		)
	case strings.Contains(err.Error(), credentialsFailed):
		_, why, _ := strings.Cut(err.Error(), credentialsFailed)
		return "No credentials", could + fmt.Sprintf("The command that prints the credentials for %s (exec, in the provider block or the "+
			"kubeconfig) failed: %s. Run it by hand on this machine, as the user that runs Terraform.", server, strings.TrimSpace(why))
	case apierrors.IsForbidden(err) && isAdmission(err.Error()):
		return "Refused by the API server", could + fmt.Sprintf("%s. The user has the right to do it: an admission check of the cluster "+
			"refuses it.", capitalise(err.Error()))
	case apierrors.IsForbidden(err):
		return "Not allowed", could + fmt.Sprintf("%v. Grant this verb on this resource to the user with a Role or ClusterRole and its binding; "+
			"`kubectl auth can-i --list` shows what is granted.", err)
	case errors.As(err, &connect) && (errors.Is(err, errSilent) || errors.Is(err, context.DeadlineExceeded) || errors.As(err, &network)):
		return "Cluster unreachable", could + fmt.Sprintf(
			"%s does not answer: %v. Nothing was changed. Check that the cluster runs, that the address is right, and that this machine may "+
				"reach it.",
			server,
			rootCause(err),
		)
	case errors.As(err, &connect):
		return "Cluster unreachable", could + fmt.Sprintf(
			"%s does not answer as a Kubernetes API server: %v. Nothing was changed.",
			server,
			connect.Err,
		)
	case errors.Is(err, errSilent):
		return "The API server does not answer", could + fmt.Sprintf(
			"%s: %v. Nothing is known of what it did. Try again when it answers; `terraform plan -refresh=false` shows the state as it is.",
			capitalise(server), errSilent)
	case errors.As(err, &network) || IsConnectionLost(err):
		return "Connection to the cluster lost", could + fmt.Sprintf(
			"The API server stopped answering: %v. What was done so far is in the state; run terraform apply again when it is back.",
			lossCause(err),
		)
	case apierrors.IsInvalid(err):
		return "Refused by the API server", could + capitalise(err.Error())
	}
	return "Could not " + doing, err.Error() + "."
}

// credentialsFailed begins client-go's error of a command that did not print credentials.
const credentialsFailed = "getting credentials: "

// isAdmission reports whether an answer 403 comes from an admission check, a quota or a namespace that ends, and not from missing rights:
// those name the user (apiserver's package responsewriters), or the rights that it would grant and lacks itself (RBAC).
func isAdmission(text string) bool {
	if strings.Contains(text, `: User "`) || strings.Contains(text, "is attempting to grant RBAC permissions not currently held") {
		return false
	}
	return strings.Contains(text, " is forbidden: ") || strings.Contains(text, `admission webhook "`)
}

// isCertificateRefused reports whether the other side of a TLS connection ended it because of the certificate of this side, or for want
// of one.
func isCertificateRefused(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "remote error" && strings.Contains(op.Error(), "certificate")
}

// IsConnectionLost reports whether err means that the server became unreachable, not that it refused.
func IsConnectionLost(err error) bool {
	if err == nil {
		return false
	}
	text := err.Error()
	for _, sign := range []string{"connection refused", "connection reset", "unexpected EOF", "http2: client connection lost",
		"server is shutting down", "etcdserver:"} {
		if strings.Contains(text, sign) {
			return true
		}
	}
	return false
}

func rootCause(err error) error {
	for {
		next := errors.Unwrap(err)
		if next == nil {
			return err
		}
		// *net.OpError has the address; its cause alone ("connection refused") would not name it.
		var op *net.OpError
		if errors.As(err, &op) {
			return op
		}
		err = next
	}
}

// lossCause is rootCause, or the whole error where its root names neither request nor address.
func lossCause(err error) error {
	cause := rootCause(err)
	if errors.Is(cause, io.ErrUnexpectedEOF) || errors.Is(cause, io.EOF) {
		return err
	}
	return cause
}

func capitalise(s string) string {
	if s == "" {
		return s
	}
	return strings.ToUpper(s[:1]) + s[1:]
}
