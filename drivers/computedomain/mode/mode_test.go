package mode_test

import (
	"errors"
	"testing"

	"gpufabric.io/drivers/api/resource/v1beta1"
	"gpufabric.io/drivers/computedomain/mode"
)

const (
	none   = v1beta1.IMEXMode("")
	own    = v1beta1.IMEXDomain
	clique = v1beta1.IMEXClique
	host   = v1beta1.IMEXHost
)

func TestNextFollowsTheTable(t *testing.T) {
	for name, c := range map[string]struct {
		state mode.State
		holds bool
		want  v1beta1.IMEXMode
	}{
		"a new domain":                                 {mode.State{Configured: own}, false, own},
		"a new domain, clique":                         {mode.State{Configured: clique}, false, clique},
		"a new domain, host":                           {mode.State{Configured: host}, false, host},
		"a controller without a mode":                  {mode.State{}, false, own},
		"own daemons stay under clique":                {mode.State{Recorded: own, Configured: clique}, false, own},
		"own daemons stay under host":                  {mode.State{Recorded: own, Configured: host, Nodes: 2}, false, own},
		"a domain that waits follows to own":           {mode.State{Recorded: clique, Configured: own}, false, own},
		"a domain that waits follows to host":          {mode.State{Recorded: clique, Configured: host}, false, host},
		"a domain that waits follows to clique":        {mode.State{Recorded: host, Configured: clique}, false, clique},
		"a domain with a channel stays":                {mode.State{Recorded: clique, Configured: host}, true, clique},
		"a domain with nodes stays":                    {mode.State{Recorded: host, Configured: own, Nodes: 1}, false, host},
		"a clique's is never of own daemons":           {mode.State{Clique: true, Configured: own}, false, clique},
		"a clique's, host":                             {mode.State{Clique: true, Configured: host}, false, host},
		"a clique's stays when the configured changes": {mode.State{Clique: true, Recorded: clique, Configured: host}, false, clique},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := mode.Next(c.state, func() (bool, error) { return c.holds, nil })
			if err != nil || got != c.want {
				t.Errorf("%q (%v), want %q", got, err, c.want)
			}
		})
	}
}

func TestNextKeepsTheModeWhenTablesCannotBeRead(t *testing.T) {
	failed := errors.New("timeout")
	got, err := mode.Next(mode.State{Recorded: clique, Configured: host}, func() (bool, error) { return false, failed })
	if got != clique || !errors.Is(err, failed) {
		t.Errorf("%q (%v), want the recorded mode and the error", got, err)
	}
}

func TestOfGivesTheThreeModes(t *testing.T) {
	for name, want := range map[v1beta1.IMEXMode]struct{ shared, ofUser, ofClique bool }{
		none: {false, true, true}, own: {false, true, true}, clique: {true, false, true}, host: {true, false, false},
	} {
		m := mode.Of(name)
		if name != none && m.Name() != name {
			t.Errorf("%q has the name %q", name, m.Name())
		}
		if m.Shared() != want.shared || m.Daemons(false) != want.ofUser || m.Daemons(true) != want.ofClique {
			t.Errorf("%q: shared %t, daemons of a user's domain %t, of a clique's %t; want %+v", name, m.Shared(), m.Daemons(false),
				m.Daemons(true), want)
		}
		if m.Shared() != name.Shared() {
			t.Errorf("%q: the API type and the mode differ", name)
		}
	}
}

func TestServesOnlyDomainsOfTheCliquesMode(t *testing.T) {
	for _, c := range []struct {
		clique, domain v1beta1.IMEXMode
		want           bool
	}{{none, clique, true}, {none, own, false}, {clique, clique, true}, {clique, host, false}, {host, host, true}, {host, own, false}} {
		if got := mode.Serves(c.clique, c.domain); got != c.want {
			t.Errorf("a clique's of %q and a domain of %q: %t", c.clique, c.domain, got)
		}
	}
}

func TestPublishesFollowsTheClaimsBeforeTheSetting(t *testing.T) {
	for _, c := range []struct {
		configured  v1beta1.IMEXMode
		own, shared bool
		want        bool
	}{
		{own, false, false, false}, {own, true, false, false}, {own, false, true, true},
		{clique, false, false, true}, {clique, true, false, false}, {host, false, true, true},
	} {
		if got := mode.Publishes(mode.Of(c.configured), c.own, c.shared); got != c.want {
			t.Errorf("%+v: %t", c, got)
		}
	}
}

func TestExcludesAllowsOneSessionOnANode(t *testing.T) {
	for _, c := range []struct{ held, wanted, joined, want bool }{
		{true, true, true, false}, {true, true, false, false},
		{true, false, true, true}, {false, true, true, true}, {false, false, true, true},
		{true, false, false, false}, {false, true, false, false}, {false, false, false, true},
	} {
		if got := mode.Excludes(c.held, c.wanted, c.joined); got != c.want {
			t.Errorf("%+v: %t", c, got)
		}
	}
}
