package controller

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"gpufabric.io/drivers/api/resource/v1beta1"
	"gpufabric.io/drivers/computedomain"
	"gpufabric.io/drivers/computedomain/imexd"
	"gpufabric.io/drivers/hardware/imex"
)

// cuts are missing connections between the IMEX daemons of nodes, by clique, then by the names of both nodes. A clique that is not in it
// was not queried.
type cuts map[string]map[string]map[string]cut

// cut is a connection that is missing.
type cut struct {
	state imex.ConnectionStatus
	since time.Time
}

// cutsOf are the missing connections between a domain's daemons: those that the survey found, or those of the cliques that serve the
// domain.
func (r *Reconciler) cutsOf(ctx context.Context, p *pass) (cuts, error) {
	found := cuts{}
	if p.ownDaemons() {
		return r.survey.of(p.domain.UID), nil
	}
	for _, node := range p.domain.Status.Nodes {
		if _, done := found[node.CliqueID]; done || node.CliqueID == "" || p.clique != "" {
			continue
		}
		clique, err := r.clique(ctx, node.CliqueID)
		if err != nil {
			return nil, err
		}
		if clique == nil {
			continue
		}
		found[node.CliqueID] = map[string]map[string]cut{}
		for _, served := range clique.Status.Nodes {
			peers := map[string]cut{}
			for _, peer := range served.Disconnected {
				peers[peer.Name] = cut{state: imex.ConnectionStatus(peer.State), since: peer.Since.Time}
			}
			found[node.CliqueID][served.Name] = peers
		}
	}
	return found, nil
}

// disconnectedWords reports which nodes' daemons are not connected, those with the most missing connections first: where one node is cut
// off, every other lacks one connection, and it lacks all.
func disconnectedWords(apart []*v1beta1.ComputeDomainNode) string {
	const named = 3
	sorted := slices.Clone(apart)
	slices.SortStableFunc(sorted, func(a, b *v1beta1.ComputeDomainNode) int { return len(b.Disconnected) - len(a.Disconnected) })
	since, states := sorted[0].Disconnected[0].Since, map[string]bool{}
	var words []string
	for _, node := range sorted {
		var peers []string
		for _, peer := range node.Disconnected {
			if peer.Since.Before(&since) {
				since = peer.Since
			}
			states[peer.State] = true
			peers = append(peers, fmt.Sprintf("%s (%s)", peer.Name, peer.State))
		}
		if left := len(peers) - named; left > 0 {
			peers = append(peers[:named:named], fmt.Sprintf("%d more", left))
		}
		words = append(words, node.Name+" with "+strings.Join(peers, ", "))
	}
	if left := len(words) - namedAtMost; left > 0 {
		words = append(words[:namedAtMost], fmt.Sprintf("and %d more nodes", left))
	}
	remedy := fmt.Sprintf("let the nodes' pods reach each other on TCP port %d (NetworkPolicies, the CNI, firewalls)",
		computedomain.ServerPort)
	if delete(states, string(imex.OtherVersion)); len(states) == 0 {
		remedy = "bring the nodes to one version of the driver and of nvidia-imex"
	}
	return fmt.Sprintf("IMEX daemons that are READY are not connected since %s: %s: pods on these nodes cannot use each other's memory; %s",
		since.UTC().Format(time.RFC3339), strings.Join(words, "; "), remedy)
}

// asker queries IMEX daemons' pods.
type asker struct {
	client http.Client
	// slots has one of each connection that is open.
	slots chan struct{}
}

// openAtOnce is the number of daemons queried at the same time. If no daemon of 560 racks reaches another, all 10,080 are queried, again
// and again.
const openAtOnce = 128

// answerLimit is the size of the largest answer that is read. One with no connection at all among the 18 nodes of a rack is 8 KiB.
const answerLimit = 1 << 20

// newAsker makes an asker without kept connections: a daemon is queried every few minutes.
func newAsker() *asker {
	return &asker{slots: make(chan struct{}, openAtOnce), client: http.Client{
		// The daemon takes 2 s for a question that hangs.
		Timeout:   4 * time.Second,
		Transport: &http.Transport{DisableKeepAlives: true, Proxy: nil},
		CheckRedirect: func(*http.Request, []*http.Request) error {
			return http.ErrUseLastResponse
		},
	}}
}

// ask queries the daemon whose pod has an address.
func (a *asker) ask(ctx context.Context, address string) (imexd.Connections, error) {
	var known imexd.Connections
	select {
	case a.slots <- struct{}{}:
		defer func() { <-a.slots }()
	case <-ctx.Done():
		return known, ctx.Err()
	}
	url := "http://" + net.JoinHostPort(address, strconv.Itoa(computedomain.HealthPort)) + computedomain.ConnectionsPath
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return known, err
	}
	response, err := a.client.Do(request)
	if err != nil {
		return known, err
	}
	defer response.Body.Close() //nolint:errcheck // read only
	body, err := io.ReadAll(io.LimitReader(response.Body, answerLimit))
	if err != nil {
		return known, fmt.Errorf("%s: %w", url, err)
	}
	if response.StatusCode != http.StatusOK {
		return known, fmt.Errorf("%s: %s: %.200s", url, response.Status, body)
	}
	if err := json.Unmarshal(body, &known); err != nil {
		return known, fmt.Errorf("%s: %w", url, err)
	}
	return known, nil
}
