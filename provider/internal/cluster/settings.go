// Package cluster turns a provider configuration into a connection to one Kubernetes API server, and explains errors.
package cluster

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	api "k8s.io/client-go/tools/clientcmd/api"
)

// Settings select the API server and the identity. Exactly one source must be named: a kubeconfig (ConfigPaths, or
// KubeconfigRaw), Host, or InCluster. The zero value names none and is an error: there is no default server.
type Settings struct {
	ConfigPaths   []string // kubeconfig files, merged as kubectl merges them
	KubeconfigRaw string   // text of a kubeconfig
	Context       string   // context in the kubeconfig; empty means its current-context
	// Variable is the environment variable that gave ConfigPaths or Host; empty: the provider block gave them.
	Variable string

	Host          string // https://HOST:PORT
	Token         string
	CA            string // PEM
	ClientCert    string // PEM
	ClientKey     string // PEM
	TLSServerName string
	ProxyURL      string
	Insecure      bool
	Exec          *Exec

	InCluster bool // use the service account of the pod that runs Terraform

	Patience time.Duration // how long a request that is no watch may go unanswered; zero: requestTimeout
}

// Exec is a command that prints credentials, as in a kubeconfig's users[].user.exec.
type Exec struct {
	APIVersion string
	Command    string
	Args       []string
	Env        map[string]string
}

// SettingError is a mistake in one provider attribute.
type SettingError struct {
	Attribute string // name of the provider attribute at fault; empty when the mistake is the absence of all
	Detail    string // the mistake, the allowed values, the remedy
}

func (e *SettingError) Error() string {
	if e.Attribute == "" {
		return e.Detail
	}
	return e.Attribute + ": " + e.Detail
}

// NoFileError is a SettingError about a kubeconfig that does not exist: it may be written before it is needed.
type NoFileError struct{ err error }

func (e *NoFileError) Error() string { return e.err.Error() }

func (e *NoFileError) Unwrap() error { return e.err }

// UserAgent is this provider's name in the API server's audit log.
const UserAgent = "terraform-provider-gpufabric"

// RESTConfig resolves the settings to a client configuration and a phrase that names its source, for example
// `context "kind-fabric" of /home/me/.kube/config`. It opens files but no connection. Errors are *SettingError.
func (s Settings) RESTConfig() (*rest.Config, string, error) {
	if err := s.check(); err != nil {
		if err.Attribute == "host" && s.Variable != "" {
			err = &SettingError{"", s.Variable + ": " + err.Detail}
		}
		return nil, "", err
	}
	var (
		config *rest.Config
		source string
		err    error
	)
	switch {
	case s.InCluster:
		source = "the pod's service account"
		if config, err = rest.InClusterConfig(); err != nil {
			return nil, "", &SettingError{
				"in_cluster",
				fmt.Sprintf(
					"in_cluster = true needs a pod's service account, but there is none here: %v. Remove in_cluster and name a kubeconfig with "+
						"config_path.",
					err,
				),
			}
		}
	case s.Host != "":
		source = "the provider's host"
		config = &rest.Config{Host: s.Host}
	default:
		if config, source, err = s.fromFiles(); err != nil {
			return nil, "", err
		}
	}
	if err := s.override(config); err != nil {
		return nil, "", err
	}
	config.UserAgent = UserAgent
	// The API server's own priority and fairness limits us; a client-side limit would only slow down large applies.
	config.QPS = -1
	timeout, seen := cmp.Or(s.Patience, requestTimeout), &silence{}
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return &patient{next, timeout, seen} })
	return config, source, nil
}

func (s Settings) check() *SettingError {
	files := len(s.ConfigPaths) > 0 || s.KubeconfigRaw != ""
	switch {
	case s.InCluster && (files || s.Host != ""):
		return &SettingError{"in_cluster", "in_cluster = true cannot be combined with config_path, config_paths, kubeconfig_raw or host: name " +
			"one cluster only."}
	case s.Host != "" && files:
		return &SettingError{"host", fmt.Sprintf("host = %q cannot be combined with config_path, config_paths or kubeconfig_raw: name one "+
			"cluster only.", s.Host)}
	case len(s.ConfigPaths) > 0 && s.KubeconfigRaw != "":
		return &SettingError{"kubeconfig_raw", "kubeconfig_raw cannot be combined with config_path or config_paths: name one cluster only."}
	case s.Context != "" && (s.Host != "" || s.InCluster):
		return &SettingError{
			"config_context",
			fmt.Sprintf(
				"config_context = %q picks an entry of a kubeconfig file, but host or in_cluster names the cluster: remove one of them.",
				s.Context,
			),
		}
	case s.Insecure && s.CA != "":
		return &SettingError{
			"insecure",
			"insecure = true skips the check of the server's certificate and cannot be combined with cluster_ca_certificate: remove one of them.",
		}
	case (s.ClientCert == "") != (s.ClientKey == ""):
		return &SettingError{"client_certificate", "client_certificate and client_key belong together: set both or neither."}
	case s.Token != "" && s.Exec != nil:
		return &SettingError{"token", "token and exec are two ways to log in: set one of them."}
	case s.Host == "" && !files && !s.InCluster:
		return &SettingError{
			"",
			"No cluster is named. Set one of config_path, config_paths, kubeconfig_raw, host (with token, client certificate or exec), or " +
				"in_cluster = true in the provider block, or export KUBE_CONFIG_PATH, KUBE_HOST or KUBECONFIG. The provider never falls back to " +
				"localhost or to ~/.kube/config by itself.",
		}
	}
	if s.Host != "" {
		u, err := url.Parse(s.Host)
		if err != nil && strings.Contains(s.Host, "@") {
			return &SettingError{
				"host",
				"host is not a URL of an API server; write it like https://10.0.0.1:6443, without a user.",
			} // it may hold a password
		}
		if err == nil && u.User != nil {
			return &SettingError{
				"host",
				"host names a user (https://user@...), which the API server does not read: take it away and log in with token, a client certificate " +
					"or exec.",
			}
		}
		if err != nil || u.Host == "" || (u.Scheme != "https" && u.Scheme != "http") {
			return &SettingError{"host", fmt.Sprintf("host = %q is not a URL of an API server; write it like https://10.0.0.1:6443.", s.Host)}
		}
	}
	return nil
}

func (s Settings) fromFiles() (*rest.Config, string, error) {
	attribute, file := "config_path", strings.Join(s.ConfigPaths, ", ")
	switch {
	case s.KubeconfigRaw != "":
		attribute, file = "kubeconfig_raw", "kubeconfig_raw"
	case s.Variable != "":
		attribute = ""
	case len(s.ConfigPaths) > 1:
		attribute = "config_paths"
	}
	fail := func(format string, args ...any) error {
		detail := fmt.Sprintf(format, args...)
		if attribute == "" {
			detail = s.Variable + "=" + strings.Join(s.ConfigPaths, string(os.PathListSeparator)) + ": " + detail
		}
		return &SettingError{attribute, detail}
	}
	raw, err := s.load(fail)
	if err != nil {
		return nil, "", err
	}
	name := s.Context
	if name == "" {
		name = raw.CurrentContext
	}
	if name == "" {
		return nil, "", fail("%s has no current-context. Set config_context to one of: %s.", file, names(raw.Contexts))
	}
	where := fmt.Sprintf("context %q of %s", name, file)
	context, ok := raw.Contexts[name]
	if !ok {
		at := attribute
		if s.Context != "" {
			at = "config_context"
		}
		return nil, "", &SettingError{at, fmt.Sprintf("there is no context %q in %s. It has: %s.", name, file, names(raw.Contexts))}
	}
	if c, ok := raw.Clusters[context.Cluster]; !ok || c.Server == "" {
		return nil, "", fail("%s names the cluster %q, which has no server address there. Add clusters[].cluster.server.", where, context.Cluster)
	}
	config, err := clientcmd.NewNonInteractiveClientConfig(*raw, name, &clientcmd.ConfigOverrides{}, nil).ClientConfig()
	if err != nil {
		return nil, "", fail("%s is not usable: %v.", where, err)
	}
	return config, where, nil
}

// load reads the kubeconfig; fail makes the error of a mistake in it.
func (s Settings) load(fail func(string, ...any) error) (*api.Config, error) {
	if s.KubeconfigRaw != "" {
		raw, err := clientcmd.Load([]byte(s.KubeconfigRaw))
		if err != nil { // the parser's error may quote the text, which holds credentials
			return nil, fail("kubeconfig_raw is not the text of a kubeconfig. Give the file's content, not its path.")
		}
		return raw, nil
	}
	rules := &clientcmd.ClientConfigLoadingRules{}
	for _, p := range s.present() {
		expanded, err := expandHome(p)
		if err != nil {
			return nil, fail("%v", err)
		}
		if _, err := os.Stat(expanded); errors.Is(err, os.ErrNotExist) {
			return nil, &NoFileError{fail("cannot read the kubeconfig: %v. Check the path; a file that this apply writes is there only after "+
				"it.", err)}
		} else if err != nil {
			return nil, fail("cannot read the kubeconfig: %v. Check the path.", err)
		}
		rules.Precedence = append(rules.Precedence, expanded)
	}
	raw, err := rules.Load()
	if err != nil {
		return nil, fail("the kubeconfig cannot be understood: %v. Check it with `kubectl config view`.", err)
	}
	return raw, nil
}

// present returns the kubeconfig files to read. Of an environment variable's list these are the ones that exist, as for kubectl; if none
// does, all that it names.
func (s Settings) present() []string {
	if s.Variable == "" {
		return s.ConfigPaths
	}
	named := slices.DeleteFunc(slices.Clone(s.ConfigPaths), func(p string) bool { return p == "" })
	exist := slices.DeleteFunc(slices.Clone(named), func(p string) bool {
		if expanded, err := expandHome(p); err == nil {
			p = expanded
		}
		_, err := os.Stat(p)
		return errors.Is(err, os.ErrNotExist)
	})
	switch {
	case len(exist) > 0:
		return exist
	case len(named) > 0:
		return named
	}
	return s.ConfigPaths
}

func (s Settings) override(config *rest.Config) error {
	// A login given here replaces the kubeconfig's: client-go would prefer a token to a command, and would run a command besides using
	// a token.
	if s.Token != "" {
		config.BearerToken, config.BearerTokenFile = s.Token, ""
		config.ExecProvider, config.AuthProvider = nil, nil
	}
	if s.CA != "" {
		config.CAData, config.CAFile = []byte(s.CA), ""
	}
	if s.ClientCert != "" {
		config.CertData, config.CertFile = []byte(s.ClientCert), ""
		config.KeyData, config.KeyFile = []byte(s.ClientKey), ""
	}
	if s.TLSServerName != "" {
		config.ServerName = s.TLSServerName
	}
	if s.Insecure {
		config.Insecure, config.CAData, config.CAFile = true, nil, ""
	}
	if s.ProxyURL != "" {
		proxy, err := url.Parse(s.ProxyURL)
		if err != nil || proxy.Host == "" {
			// The value may contain a password.
			return &SettingError{"proxy_url", "proxy_url is not a URL; write it like http://proxy.example:3128."}
		}
		config.Proxy = func(*http.Request) (*url.URL, error) { return proxy, nil }
	}
	if s.Exec != nil {
		config.BearerToken, config.BearerTokenFile, config.AuthProvider = "", "", nil
		config.ExecProvider = &api.ExecConfig{
			APIVersion:      s.Exec.APIVersion,
			Command:         s.Exec.Command,
			Args:            s.Exec.Args,
			InteractiveMode: api.NeverExecInteractiveMode,
		}
		for _, name := range slices.Sorted(maps.Keys(s.Exec.Env)) {
			config.ExecProvider.Env = append(config.ExecProvider.Env, api.ExecEnvVar{Name: name, Value: s.Exec.Env[name]})
		}
	}
	if err := checkPlain(config); err != nil {
		return err
	}
	// Parsing certificates here gives the mistake its attribute; client-go would report it on the first request without one.
	if _, err := rest.TLSConfigFor(config); err != nil {
		attribute := ""
		switch {
		case s.CA != "" && strings.Contains(err.Error(), "root certificates"):
			attribute = "cluster_ca_certificate"
		case s.ClientCert != "":
			attribute = "client_certificate"
		}
		return &SettingError{
			attribute,
			fmt.Sprintf("the TLS settings cannot be used: %v. Certificates and keys are PEM text, not file names and not base64 of PEM.", err),
		}
	}
	return nil
}

// checkPlain refuses credentials for an address without TLS, where others on the network can read them. client-go sends a bearer
// token over http as well as over https.
func checkPlain(config *rest.Config) error {
	address, err := url.Parse(config.Host)
	if err != nil || address.Scheme != "http" {
		return nil //nolint:nilerr // an address that is no URL has an error of its own
	}
	var carried string
	switch {
	case config.BearerToken != "" || config.BearerTokenFile != "":
		carried = "a token"
	case config.ExecProvider != nil || config.AuthProvider != nil:
		carried = "the credentials of exec"
	case config.Username != "":
		carried = "a password"
	default:
		return nil
	}
	return &SettingError{
		"host",
		fmt.Sprintf(
			"%s would go to %s unencrypted, for everybody on the way to read: write the address with https, or take the credentials away.",
			carried,
			address.Redacted(),
		),
	}
}

func expandHome(path string) (string, error) {
	rest, ok := strings.CutPrefix(path, "~/")
	if !ok {
		return path, nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", fmt.Errorf("expand %s: %w", path, err)
	}
	return filepath.Join(home, rest), nil
}

func names[V any](m map[string]V) string {
	if len(m) == 0 {
		return "(none)"
	}
	return strings.Join(slices.Sorted(maps.Keys(m)), ", ")
}
