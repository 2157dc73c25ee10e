package httpserver

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// elsewhere are the files that may start a server of another kind, with the reason.
func elsewhere() map[string]string {
	return map[string]string{
		"drivers/node/httpserver/server.go":    "it is the server with the guards",
		"fakes/agent/agent.go":                 "fakes run in tests and demonstrations, on the simulated node's own address",
		"provider/internal/apiserver/pods.go":  "it stands in for a kubelet in the provider's tests",
		"drivers/scheduler/program/program.go": "it gives kube-scheduler this project's plugins",
		"drivers/scheduler/program/command.go": "kube-scheduler's own server, with Kubernetes' time-outs and authentication, and with " +
			"httpserver's bounds on connections; docs/limitations.md says what it does not bound",
	}
}

// TestServeIsTheOnlyHTTPServerOfTheRoles looks for servers of net/http, and for programs of Kubernetes that serve by themselves.
func TestServeIsTheOnlyHTTPServerOfTheRoles(t *testing.T) {
	const root = "../../.."
	found := map[string]bool{}
	for _, module := range []string{"drivers", "fakes", "provider"} {
		err := filepath.WalkDir(filepath.Join(root, module), func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
			if err != nil {
				return err
			}
			if name, _ := filepath.Rel(root, path); serves(file) {
				found[name] = true
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for name := range found {
		if elsewhere()[name] == "" {
			t.Errorf("%s serves HTTP without the guards of package httpserver (time-outs, bounds on connections and on the log): use "+
				"httpserver.Server, or add the file here with the reason", name)
		}
	}
	for name := range elsewhere() {
		if !found[name] {
			t.Errorf("%s starts no server of another kind any more: remove it here", name)
		}
	}
}

// serves reports whether a file makes a server of net/http, or runs a program that does.
func serves(file *ast.File) bool {
	name := ""
	for _, imported := range file.Imports {
		switch path, _ := strconv.Unquote(imported.Path.Value); path {
		case "net/http":
			name = "http"
			if imported.Name != nil {
				name = imported.Name.Name
			}
		case "net/http/httptest", "k8s.io/kubernetes/cmd/kube-scheduler/app", "k8s.io/apiserver/pkg/server":
			return true
		}
	}
	makes := false
	ast.Inspect(file, func(node ast.Node) bool {
		selector, ok := node.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		from, ok := selector.X.(*ast.Ident)
		makes = makes || ok && name != "" && from.Name == name &&
			slices.Contains([]string{"Server", "ListenAndServe", "ListenAndServeTLS", "Serve", "ServeTLS"}, selector.Sel.Name)
		return true
	})
	return makes
}
