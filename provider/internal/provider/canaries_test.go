package provider

import (
	"archive/zip"
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/terraform-plugin-log/tflogtest"

	"gpufabric.io/provider/internal/apiserver"
)

// Canaries stand for secrets. None may be found in what Terraform prints, in its log at TRACE, in a plan or in a state.
const (
	valueCanary    = "canaryvalue"
	tokenCanary    = "canarytoken"
	passwordCanary = "canarypassword"
)

// testCanaries takes each secret along every way that ends in an error, and along one that does not; one of each kind of secret under
// the program itself. OpenTofu writes plans, states and logs of its own, but prints the same errors of the provider: it runs what works.
func testCanaries(t *testing.T, s *apiserver.Server, rc string) {
	const header = "terraform {\n  required_providers {\n    gpufabric = { source = \"gpufabric/gpufabric\" }\n  }\n}\n" +
		"variable \"secret\" {\n  sensitive = true\n  ephemeral = true\n}\n"
	good := fmt.Sprintf("provider \"gpufabric\" {\n  config_path = %q\n}\n", s.Kubeconfig)
	release := func(more string) string {
		return "resource \"gpufabric_driver_stack\" \"test\" {\n  name = \"canary\"\n  namespace = \"canary-system\"\n  chart = " +
			"\"testdata/stack\"\n" +
			"  values_wo = [var.secret]\n  values_wo_version = 1\n" + more + "\n}\n"
	}
	const domain = "resource \"gpufabric_compute_domain\" \"test\" {\n  name = \"x\"\n  channel = { resource_claim_template = \"x\" }\n}\n"
	for _, c := range []struct {
		name, config, secret, want string
		works                      bool
		program                    bool
	}{
		{"a value that the chart takes", good + release(""), "hardware: {driverRoot: " + valueCanary + "}", "Apply complete", true, true},
		{"values that are no YAML", good + release(""), "password: {" + valueCanary, "not valid YAML", false, false},
		{"values that are a text", good + release(""), valueCanary, "chart values are a YAML mapping", false, false},
		{"a value of the wrong type", good + release(""), "controller: {replicas: " + valueCanary + "}", "Values the chart does not allow",
			false, false},
		{"a value that a pattern refuses", good + release(""), "brokenType: " + valueCanary + "-1", "Values the chart does not allow",
			false, false},
		{"a value that breaks a " +
			"template", good + release(""), "hardware: {driverRoot: \"" + valueCanary + "\\n]: [\"}", "Could not install", false, false},
		{"a value that the API server refuses", good + release(""), "{broken: true, brokenType: " + valueCanary + "}", "Unsupported value",
			false, true},
		{"a secret that is given twice", good + release("values = [\"hardware: {driverRoot: /x}\"]"),
			"hardware: {driverRoot: " + valueCanary + "}", "Value given twice", false, false},
		{"a token that is rejected", fmt.Sprintf("provider \"gpufabric\" {\n  host = %q\n  insecure = true\n  token = "+
			"var.secret\n}\n", s.URL) + domain,
			tokenCanary, "Credentials rejected", false, true},
		{"a token for a server that is away", "provider \"gpufabric\" {\n  host = \"https://127.0.0.1:1\"\n  token = " +
			"var.secret\n}\n" + domain, tokenCanary, "Cluster unreachable", false, false},
		{"a token over http", "provider \"gpufabric\" {\n  host = \"http://127.0.0.1:1\"\n  token = " +
			"var.secret\n}\n" + domain, tokenCanary, "unencrypted", false, false},
		{"a password in the host", "provider \"gpufabric\" {\n  host = " +
			"\"https://admin:${var.secret}@127.0.0.1:1\"\n}\n" + domain, passwordCanary, "host names a user", false, false},
		{"a password in a host that is no URL", "provider \"gpufabric\" {\n  host = " +
			"\"https://admin:${var.secret}@127.0.0.1:port\"\n}\n" + domain, passwordCanary,
			"is not a URL of an API server", false, false},
		{"a proxy's password", "provider \"gpufabric\" {\n  host = \"https://127.0.0.1:2\"\n  proxy_url = " +
			"\"http://user:${var.secret}@127.0.0.1:1\"\n}\n" + domain,
			passwordCanary, "Cluster unreachable", false, true},
		{"a proxy's password in what is no URL", "provider \"gpufabric\" {\n  host = \"https://127.0.0.1:2\"\n  proxy_url = " +
			"\"user:${var.secret}@x:port\"\n}\n" + domain,
			passwordCanary, "proxy_url is not a URL", false, false},
		{"a command's environment", "provider \"gpufabric\" {\n  host = \"https://127.0.0.1:1\"\n  exec = {\n    api_version = " +
			"\"client.authentication.k8s.io/v1\"\n" +
			"    command = \"false\"\n    env = { PASSWORD = var.secret }\n  }\n}\n" + domain, passwordCanary, "exit code 1", false, false},
		{"a client key that is no PEM", "provider \"gpufabric\" {\n  host = \"https://127.0.0.1:1\"\n  client_certificate = \"x\"\n  " +
			"client_key = var.secret\n}\n" + domain,
			tokenCanary, "the TLS settings cannot be used", false, false},
	} {
		if !c.works && filepath.Base(os.Getenv("TF_ACC_TERRAFORM_PATH")) == "tofu" {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			if !c.program {
				canaryByCore(t, c.config, c.secret, c.want)
				return
			}
			dir := t.TempDir()
			must(t, os.CopyFS(filepath.Join(dir, "testdata/stack"), os.DirFS("testdata/stack")))
			must(t, os.WriteFile(filepath.Join(dir, "main.tf"), []byte(header+c.config), 0o600))
			run := newCLI(t, rc, dir, nil)
			run.env = append(run.env, "TF_VAR_secret="+c.secret, "TF_LOG=TRACE", "TF_LOG_PATH="+filepath.Join(dir, "log"))
			said, err := run.try("plan", "-out", "plan")
			if err == nil {
				var more string
				more, err = run.try("apply", "-auto-approve")
				said += more
			}
			if (err == nil) != c.works {
				t.Fatalf("error %v:\n%s", err, said)
			}
			contains(t, oneLine(said), c.want)
			if c.works {
				run.run("apply", "-auto-approve", "-refresh-only")
				said += run.run("destroy", "-auto-approve")
			}
			must(t, os.WriteFile(filepath.Join(dir, "said"), []byte(said), 0o600))
			noCanary(t, dir)
		})
	}
}

// canaryByCore takes a secret along a way that ends in an error, and looks into the error, the warnings, the log, the plan and the state.
func canaryByCore(t *testing.T, config, secret, want string) {
	t.Helper()
	var log bytes.Buffer
	ctx := tflogtest.RootLogger(t.Context(), &log)
	c := newCore(t)
	config = strings.NewReplacer("${var.secret}", secret, "var.secret", fmt.Sprintf("%q", secret)).Replace(config)
	cfg, err := c.parse(config)
	must(t, err)
	changes, err := c.preview(ctx, cfg)
	if err == nil {
		server, connected := c.connect(ctx, cfg)
		must(t, connected)
		err = c.apply(ctx, server, changes)
	}
	if err == nil {
		t.Fatalf("want an error with %q", want)
	}
	contains(t, oneLine(err.Error()), want)
	left := []string{err.Error(), strings.Join(c.warnings, "\n"), log.String()}
	for _, ch := range changes {
		left = append(left, ch.planned.String(), string(ch.private))
	}
	for _, i := range c.instances {
		left = append(left, i.state.String(), string(i.private))
	}
	for _, text := range left {
		noCanaryIn(t, "what the provider returns", text)
	}
}

// noCanaryIn looks for a canary in a text.
func noCanaryIn(t *testing.T, name, text string) {
	t.Helper()
	for _, canary := range []string{valueCanary, tokenCanary, passwordCanary} {
		if at := strings.Index(text, canary); at >= 0 {
			t.Errorf("%s tells a secret: ...%s...", name, text[max(0, at-300):min(len(text), at+100)])
		}
	}
}

// noCanary looks through every file in dir that Terraform wrote, and into its plan.
func noCanary(t *testing.T, dir string) {
	t.Helper()
	looked := 0
	look := func(name, text string) {
		looked++
		noCanaryIn(t, name, text)
	}
	must(t, filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		look(path, string(text))
		return nil
	}))
	if plan, err := zip.OpenReader(filepath.Join(dir, "plan")); err == nil {
		defer func() { _ = plan.Close() }()
		for _, file := range plan.File {
			r, err := file.Open()
			must(t, err)
			text, err := io.ReadAll(r)
			must(t, err)
			look("plan: "+file.Name, string(text))
		}
	}
	if log, err := os.Stat(filepath.Join(dir, "log")); err != nil || log.Size() < 1000 || looked < 4 {
		t.Errorf("the log at TRACE is not there: %v", err)
	}
}
