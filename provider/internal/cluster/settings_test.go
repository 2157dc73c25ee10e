package cluster

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
)

// kubeconfig writes a kubeconfig whose user is as given.
func kubeconfig(t *testing.T, user string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config")
	text := "apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters: [{name: c, cluster: {server: 'https://127.0.0.1:1'}}]\n" +
		"contexts: [{name: c, context: {cluster: c, user: u}}]\nusers: [{name: u, user: " + user + "}]\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestLoginOfProviderBlockReplacesKubeconfig: client-go prefers a token to a command, and runs a command beside a token.
func TestLoginOfProviderBlockReplacesKubeconfig(t *testing.T) {
	const command = "{exec: {apiVersion: client.authentication.k8s.io/v1, command: login, interactiveMode: Never}}"
	t.Run("a token replaces a command", func(t *testing.T) {
		config, _, err := Settings{ConfigPaths: []string{kubeconfig(t, command)}, Token: "mine"}.RESTConfig()
		if err != nil {
			t.Fatal(err)
		}
		if config.BearerToken != "mine" || config.ExecProvider != nil {
			t.Errorf("token %q, command %v; want the token alone", config.BearerToken, config.ExecProvider)
		}
	})
	t.Run("a command replaces a token", func(t *testing.T) {
		config, _, err := Settings{
			ConfigPaths: []string{kubeconfig(t, "{token: old}")},
			Exec:        &Exec{APIVersion: "client.authentication.k8s.io/v1", Command: "login"},
		}.RESTConfig()
		if err != nil {
			t.Fatal(err)
		}
		if config.BearerToken != "" || config.BearerTokenFile != "" || config.ExecProvider == nil {
			t.Errorf("token %q, command %v; want the command alone", config.BearerToken, config.ExecProvider)
		}
	})
}

func TestConnectionFailsOnlyCancelledCaller(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(`{"major":"1","minor":"36","gitVersion":"v1.36.3"}`)) // a client that left sees nothing
	}))
	defer server.Close()
	connection := NewConnection(Settings{Host: server.URL})
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := connection.Client(gone); err == nil {
		t.Fatal("a caller whose context has ended got a client")
	}
	if _, err := connection.Client(t.Context()); err != nil {
		t.Errorf("the next caller is told of the other's end: %v", err)
	}
}

// TestVariableWithSeveralFilesIsReadAsKubectlReadsIt: kubectl passes over files that do not exist, and over empty parts of the list.
func TestVariableWithSeveralFilesIsReadAsKubectlReadsIt(t *testing.T) {
	file := kubeconfig(t, "{token: mine}")
	missing := filepath.Join(t.TempDir(), "missing")
	for name, paths := range map[string][]string{"a missing file before": {missing, file}, "a missing file behind": {file, missing},
		"a separator at the end": {file, ""}, "two separators": {"", file, "", missing}} {
		t.Run(name, func(t *testing.T) {
			config, _, err := Settings{ConfigPaths: paths, Variable: "KUBECONFIG"}.RESTConfig()
			if err != nil || config.BearerToken != "mine" {
				t.Errorf("%v: %v", paths, err)
			}
		})
	}
	for name, paths := range map[string][]string{"no file": {missing, ""}, "only separators": {"", ""}} {
		t.Run(name, func(t *testing.T) {
			_, _, err := Settings{ConfigPaths: paths, Variable: "KUBECONFIG"}.RESTConfig()
			var absent *NoFileError
			if !errors.As(err, &absent) {
				t.Errorf("%v: %v, want that no file is there", paths, err)
			}
		})
	}
	// A list in the provider block may name a file that the same apply writes.
	var absent *NoFileError
	if _, _, err := (Settings{ConfigPaths: []string{file, missing}}).RESTConfig(); !errors.As(err, &absent) {
		t.Errorf("a missing file of the provider block: %v", err)
	}
}
