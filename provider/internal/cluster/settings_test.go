package cluster

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
)

func TestAnImpatientCallerFailsAlone(t *testing.T) {
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
