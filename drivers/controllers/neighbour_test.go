package controllers

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"

	"gpufabric.io/drivers/node/host"
)

// A kind without its CRD does not stop other controllers. Its own controller works once the CRD exists.
func TestNeighbourIsRestartedUntilTheRoleEnds(t *testing.T) {
	tried := make(chan struct{}, 16)
	n := &neighbour{config: &rest.Config{Host: "http://127.0.0.1:1"}, add: func(context.Context, ctrl.Manager) error {
		tried <- struct{}{}
		return errors.New("no matches for kind")
	}}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- n.Start(ctx) }()
	for range 2 {
		select {
		case <-tried:
		case err := <-ended:
			t.Fatalf("it is given up: %v", err)
		case <-time.After(time.Minute):
			t.Fatal("it is not started again")
		}
	}
	cancel()
	select {
	case err := <-ended:
		if err != nil {
			t.Errorf("it ends the others with %v", err)
		}
	case <-time.After(time.Minute):
		t.Error("it goes on after the role has ended")
	}
}

func TestFlagsAreCheckedBeforeAnAPIServerIsLookedFor(t *testing.T) {
	asked := false
	h := host.Host{Getenv: func(string) string { return "" }, RESTConfig: func() (*rest.Config, error) {
		asked = true
		return nil, errors.New("no API server")
	}}
	for _, test := range []struct {
		name    string
		args    []string
		problem string
		asked   bool
	}{
		{"an argument", []string{"now"}, "unknown command", false},
		{"the image is missing", []string{"--namespace=gpufabric-system"}, "--image is empty", false},
		{"a pull policy that is none", []string{"--namespace=n", "--image=i", "--image-pull-policy=Maybe"}, "allowed are Always", false},
		{"all is there", []string{"--namespace=n", "--image=i"}, "no API server", true},
	} {
		t.Run(test.name, func(t *testing.T) {
			asked = false
			command := Command(h)
			command.SetArgs(test.args)
			command.SilenceErrors, command.SilenceUsage = true, true
			err := command.ExecuteContext(t.Context())
			if err == nil || !strings.Contains(err.Error(), test.problem) || asked != test.asked {
				t.Errorf("got %v, asked for an API server: %v", err, asked)
			}
		})
	}
}
