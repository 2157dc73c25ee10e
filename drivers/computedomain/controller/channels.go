package controller

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"gpufabric.io/drivers/api/resource/v1beta1"
	"gpufabric.io/drivers/computedomain"
	"gpufabric.io/drivers/hardware/imex"
)

// decideMode records in the status whose IMEX daemons serve the domain. The choice is made once: a later change of the controller's mode
// does not move the domain. A domain that an earlier version has reconciled has daemons of its own. A domain that still waits for its
// first channel of a clique follows the controller's mode, since no daemon serves it yet, and none may come: in mode Domain the controller
// makes no clique's ComputeDomain. One that has daemons of its own keeps them.
func (r *Reconciler) decideMode(ctx context.Context, p *pass) error {
	status := &p.domain.Status
	told := r.settings.IMEX
	switch {
	case p.clique != "" && status.IMEX != "":
	case p.clique != "" && told == v1beta1.IMEXHost:
		status.IMEX = v1beta1.IMEXHost
	case p.clique != "":
		status.IMEX = v1beta1.IMEXClique
	case r.mayFollow(p.domain):
		holds, err := r.holdsChannel(ctx, p.domain.UID)
		if err != nil {
			return err
		}
		if !holds {
			status.IMEX = told
		}
	case status.IMEX != "":
	case len(status.Conditions) == 0 && told.Shared():
		status.IMEX = told
	default:
		status.IMEX = v1beta1.IMEXDomain
	}
	return nil
}

// mayFollow says whether the controller's mode is another than that of a user's domain which no daemon has served so far. It follows unless
// it has got a channel (holdsChannel).
func (r *Reconciler) mayFollow(domain *v1beta1.ComputeDomain) bool {
	return domain.Status.IMEX.Shared() && domain.Status.IMEX != r.settings.IMEX && len(domain.Status.Nodes) == 0
}

// holdsChannel says whether a domain holds a channel of any clique.
func (r *Reconciler) holdsChannel(ctx context.Context, domain types.UID) (bool, error) {
	var list v1beta1.ComputeDomainList
	if err := r.client.List(ctx, &list, client.InNamespace(r.settings.Namespace), client.HasLabels{v1beta1.LabelClique}); err != nil {
		return false, fmt.Errorf("look for channels that ComputeDomain %s holds: %w", domain, err)
	}
	for i := range list.Items {
		if computedomain.ChannelOf(r.memory.newest(&list.Items[i]), domain) != nil {
			return true, nil
		}
	}
	return false, nil
}

// ownDaemons says whether daemons run for this very domain.
func (p *pass) ownDaemons() bool {
	return p.domain.Status.IMEX != v1beta1.IMEXHost && (p.clique != "" || p.domain.Status.IMEX != v1beta1.IMEXClique)
}

// channelsOf adds to a clique's table of channels the domains that its nodes have joined. count is how many channels every node of the
// clique has. A new domain gets the lowest free number. It gets none where no number is free, where one domain holds all channels, or
// where it wants all of them and others hold some.
//
// The table is one object, and the API server refuses a write that was made from an older version of it. So no number is held twice,
// whoever writes.
func channelsOf(kept []v1beta1.ComputeDomainChannel, wanted []*v1beta1.ComputeDomain, count int) []v1beta1.ComputeDomainChannel {
	channels := slices.Clone(kept)
	taken := map[int]bool{}
	known := map[string]bool{}
	exclusive := false
	for _, channel := range kept {
		taken[channel.Number], known[channel.DomainID] = true, true
		exclusive = exclusive || channel.All
	}
	// The same domains in the same state always get the same numbers.
	slices.SortFunc(wanted, func(a, b *v1beta1.ComputeDomain) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.UID, b.UID))
	})
	for _, domain := range wanted {
		all := domain.Spec.Channel.AllocationMode == v1beta1.AllocationModeAll
		if known[string(domain.UID)] || exclusive || all && len(channels) > 0 {
			continue
		}
		number := 0
		for taken[number] {
			number++
		}
		if number >= count {
			continue
		}
		channels = append(channels, v1beta1.ComputeDomainChannel{
			Number: number, All: all, DomainID: string(domain.UID), Namespace: domain.Namespace, Name: domain.Name,
		})
		taken[number], exclusive = true, all
	}
	slices.SortFunc(channels, func(a, b v1beta1.ComputeDomainChannel) int { return cmp.Compare(a.Number, b.Number) })
	return channels
}

// channelCount is how many channels every node of a clique has: the smallest number on its nodes' labels. A node without the label, or
// with one that is no number, does not count.
func channelCount(nodes []metav1.PartialObjectMetadata) int {
	least := imex.Channels
	for _, node := range nodes {
		if count, err := strconv.Atoi(node.Labels[computedomain.LabelChannels]); err == nil && count >= 0 {
			least = min(least, count)
		}
	}
	return least
}

// setChannels writes the table of channels into the status of a clique's domain. Into the status of a user's domain it writes which
// number the domain holds in each of its cliques.
func (r *Reconciler) setChannels(ctx context.Context, p *pass) error {
	status := &p.domain.Status
	if p.clique == "" {
		if !status.IMEX.Shared() {
			return nil
		}
		for i := range status.Cliques {
			clique, err := r.clique(ctx, status.Cliques[i].ID)
			if err != nil {
				return err
			}
			status.Cliques[i].Channel = nil
			if clique == nil {
				continue
			}
			if channel := computedomain.ChannelOf(clique, p.domain.UID); channel != nil && !channel.All {
				status.Cliques[i].Channel = &channel.Number
			}
		}
		return nil
	}
	nodes, err := r.nodesOfClique(ctx, p.clique)
	if err != nil {
		return err
	}
	var kept []v1beta1.ComputeDomainChannel
	for _, channel := range status.Channels {
		free, err := r.givenBack(ctx, channel)
		if err != nil {
			return err
		}
		if !free {
			kept = append(kept, channel)
		}
	}
	wanted, err := r.joined(ctx, nodes, status.IMEX)
	if err != nil {
		return err
	}
	status.Channels = channelsOf(kept, wanted, channelCount(nodes))
	return nil
}

// joined returns the domains of a mode that nodes are part of, without those that are being deleted.
func (r *Reconciler) joined(ctx context.Context, nodes []metav1.PartialObjectMetadata, mode v1beta1.IMEXMode) ([]*v1beta1.ComputeDomain,
	error) {
	var uids []types.UID
	for _, node := range nodes {
		uids = append(uids, computedomain.MemberOf(node.Labels)...)
	}
	slices.Sort(uids)
	var domains []*v1beta1.ComputeDomain
	for _, uid := range slices.Compact(uids) {
		domain, err := r.find(ctx, uid)
		if err != nil {
			return nil, err
		}
		if domain != nil && domain.DeletionTimestamp == nil && domain.Status.IMEX == mode {
			domains = append(domains, domain)
		}
	}
	return domains, nil
}

// givenBack says whether another domain may get a channel's number: its domain is being deleted or gone, and no node has the number any
// more.
//
// A node plugin labels its node, then checks that the domain is not being deleted, and only then hands the number out. So once the
// domain is being deleted, every node that handed the number out keeps the label until the number is released. Both questions go to the
// API server, the domain first, since a cache may be older than the table.
func (r *Reconciler) givenBack(ctx context.Context, channel v1beta1.ComputeDomainChannel) (bool, error) {
	uid := types.UID(channel.DomainID)
	if cached, err := r.find(ctx, uid); err != nil || cached != nil && cached.DeletionTimestamp == nil {
		return false, err
	}
	// While the cache shows a node with the number there is nothing to ask: the change of that node's label causes another pass.
	if labelled, _, err := r.observe(ctx, uid); err != nil || slices.ContainsFunc(labelled, memberOf(uid)) {
		return false, err
	}
	// By its name: a list of the namespace for each domain that ends would grow with the square of the domains. The controller may list
	// domains, and not get one.
	domains := metav1.PartialObjectMetadataList{}
	domains.SetGroupVersionKind(v1beta1.SchemeGroupVersion().WithKind("ComputeDomainList"))
	if err := r.live.List(ctx, &domains, client.InNamespace(channel.Namespace),
		client.MatchingFields{metav1.ObjectNameField: channel.Name}); err != nil {
		return false, fmt.Errorf("look for the ComputeDomain that holds channel %d: %w", channel.Number, err)
	}
	for _, domain := range domains.Items {
		if domain.UID == uid && domain.DeletionTimestamp == nil {
			return false, nil
		}
	}
	nodes := metav1.PartialObjectMetadataList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "NodeList"}}
	if err := r.live.List(ctx, &nodes, client.HasLabels{computedomain.MemberLabel(uid)}, client.Limit(1)); err != nil {
		return false, fmt.Errorf("look for nodes that have channel %d: %w", channel.Number, err)
	}
	return len(nodes.Items) == 0, nil
}

// memberOf says whether a node's plugin has labelled it as one that has a domain's channel.
func memberOf(uid types.UID) func(metav1.PartialObjectMetadata) bool {
	return func(node metav1.PartialObjectMetadata) bool {
		_, member := node.Labels[computedomain.MemberLabel(uid)]
		return member
	}
}

// members are a domain's nodes as the cluster shows them now, and the pods of its own daemons.
func (r *Reconciler) members(ctx context.Context, p *pass) ([]member, []corev1.Pod, error) {
	nodes, pods, err := r.observe(ctx, p.domain.UID)
	if err != nil {
		return nil, nil, err
	}
	if p.clique != "" {
		if nodes, err = r.nodesOfClique(ctx, p.clique); err != nil {
			return nil, nil, err
		}
	}
	if p.ownDaemons() {
		members := membersOf(nodes, pods)
		if p.clique != "" {
			err = r.explainOwn(ctx, nodes, members)
		}
		return members, pods, err
	}
	members := make([]member, 0, len(nodes))
	for i := range nodes {
		node := &nodes[i]
		m := member{name: node.Name, clique: node.Labels[v1beta1.LabelClique], cliqueKnown: true}
		if p.clique != "" {
			m.ready, m.why = hostService(node)
		} else if m.clique == "" {
			m.ready = true // a node without fabric needs no daemon
		} else if err := r.servedBy(ctx, p.domain, node, &m); err != nil {
			return nil, nil, err
		}
		members = append(members, m)
	}
	slices.SortFunc(members, func(a, b member) int { return cmp.Compare(a.name, b.name) })
	return members, nil, nil
}

// explainOwn says why nodes of a clique have no daemon of it: they are part of a domain with daemons of its own.
func (r *Reconciler) explainOwn(ctx context.Context, nodes []metav1.PartialObjectMetadata, members []member) error {
	for _, node := range nodes {
		uid := types.UID(node.Labels[v1beta1.LabelComputeDomain])
		index := slices.IndexFunc(members, func(m member) bool { return m.name == node.Name })
		if uid == "" || index < 0 || members[index].ready {
			continue
		}
		domain, err := r.find(ctx, uid)
		if err != nil {
			return err
		}
		name := "with UID " + string(uid)
		if domain != nil {
			name = domain.Namespace + "/" + domain.Name
		}
		members[index].why = "ComputeDomain " + name + " has an IMEX daemon of its own there (it was made with computeDomains.imex domain); " +
			"the clique's daemon comes when that domain has left the node"
	}
	return nil
}

// hostService says whether a node's own nvidia-imex can serve domains, and if not why. The node's plugin has written the answer into a
// label.
func hostService(node *metav1.PartialObjectMetadata) (ready bool, why string) {
	switch state := node.Labels[computedomain.LabelHostIMEX]; state {
	case computedomain.HostIMEXReady:
		return true, ""
	case "":
		return false, "its node plugin has not looked at the node's nvidia-imex yet"
	default:
		return false, "the node's nvidia-imex cannot serve: " + state + " (the node's Events say more)"
	}
}

// servedBy fills in what a member's clique provides: the node's daemon, and the domain's channel.
func (r *Reconciler) servedBy(ctx context.Context, domain *v1beta1.ComputeDomain, node *metav1.PartialObjectMetadata, m *member) error {
	clique, err := r.clique(ctx, m.clique)
	if err != nil {
		return err
	}
	if clique == nil {
		if m.why = "its clique " + m.clique + " has no IMEX daemons yet"; !r.settings.IMEX.Shared() {
			m.why = "its clique " + m.clique + " has no IMEX daemons, and gets none while computeDomains.imex is domain: make the domain again"
		}
		return nil
	}
	if clique.Status.IMEX == v1beta1.IMEXHost {
		m.ready, m.why = hostService(node)
	}
	for _, served := range clique.Status.Nodes {
		if served.Name == m.name && clique.Status.IMEX != v1beta1.IMEXHost {
			m.address, m.ready = served.IPAddress, served.Status == v1beta1.Ready
		}
	}
	switch {
	case computedomain.ChannelOf(clique, domain.UID) == nil:
		m.ready, m.why = false, noChannel(clique, domain, r.settings.IMEX)
	case !m.ready && m.why == "":
		m.why = fmt.Sprintf("the IMEX daemon of its clique is not READY there: see ComputeDomain %s/%s", clique.Namespace, clique.Name)
	}
	return nil
}

// noChannel says why a domain has no channel of a clique. told is the controller's mode.
func noChannel(clique, domain *v1beta1.ComputeDomain, told v1beta1.IMEXMode) string {
	held := len(clique.Status.Channels)
	switch {
	case clique.Status.IMEX != "" && clique.Status.IMEX != domain.Status.IMEX && domain.Status.IMEX != told:
		return fmt.Sprintf("its clique is served in mode %s by now, and the domain was made in mode %s: start its pods in a clique of which it "+
			"has a channel, or make the domain again", clique.Status.IMEX, domain.Status.IMEX)
	case clique.Status.IMEX != "" && clique.Status.IMEX != domain.Status.IMEX:
		return fmt.Sprintf("its clique is still served in mode %s, where %d %s a channel: the clique changes to %s when they have ended",
			clique.Status.IMEX, held, plural(held, "domain holds", "domains hold"), domain.Status.IMEX)
	case held == 0:
		return "it has no IMEX channel yet"
	case clique.Status.Channels[0].All:
		return fmt.Sprintf("ComputeDomain %s/%s holds all IMEX channels of its clique", clique.Status.Channels[0].Namespace,
			clique.Status.Channels[0].Name)
	case domain.Spec.Channel.AllocationMode == v1beta1.AllocationModeAll:
		return fmt.Sprintf("it waits for all IMEX channels of its clique, of which %d %s held", held, plural(held, "is", "are"))
	default:
		return fmt.Sprintf("it has no IMEX channel yet: %d of its clique %s held", held, plural(held, "is", "are"))
	}
}

// clique returns the ComputeDomain that stands for a clique, or nil.
func (r *Reconciler) clique(ctx context.Context, clique string) (*v1beta1.ComputeDomain, error) {
	if clique == "" {
		return nil, nil
	}
	found := &v1beta1.ComputeDomain{}
	err := r.client.Get(ctx, client.ObjectKey{Namespace: r.settings.Namespace, Name: computedomain.CliqueName(clique)}, found)
	if client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("look up the ComputeDomain of clique %s: %w", clique, err)
	}
	if err != nil || computedomain.CliqueOf(found, r.settings.Namespace) != clique {
		return nil, nil
	}
	return r.memory.newest(found), nil
}

func (r *Reconciler) nodesOfClique(ctx context.Context, clique string) ([]metav1.PartialObjectMetadata, error) {
	nodes := metav1.PartialObjectMetadataList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "NodeList"}}
	if err := r.client.List(ctx, &nodes, client.MatchingFields{byClique: clique}); err != nil {
		return nil, fmt.Errorf("list the nodes of clique %s: %w", clique, err)
	}
	return nodes.Items, nil
}

// domainsOfNode are the domains that a node's labels name.
func domainsOfNode(o client.Object) []string {
	domains := labelIndex(o)
	for _, uid := range computedomain.MemberOf(o.GetLabels()) {
		domains = append(domains, string(uid))
	}
	return domains
}

// concerns returns the domains to reconcile when a ComputeDomain has changed: itself; those with a channel of the clique that it stands
// for; and, where it is being deleted, those that stand for the cliques in which it has a channel.
func (r *Reconciler) concerns(ctx context.Context, o client.Object) []types.UID {
	concerned := []types.UID{o.GetUID()}
	domain, ok := o.(*v1beta1.ComputeDomain)
	if !ok {
		return concerned
	}
	if domain.DeletionTimestamp != nil {
		r.memory.deletingSince(domain.UID, r.now())
	}
	if domain.DeletionTimestamp != nil && domain.Status.IMEX.Shared() {
		for _, part := range domain.Status.Cliques {
			if clique, err := r.clique(ctx, part.ID); err == nil && clique != nil {
				concerned = append(concerned, clique.UID)
			}
		}
	}
	for _, channel := range domain.Status.Channels {
		concerned = append(concerned, types.UID(channel.DomainID))
	}
	return concerned
}

// concernsOfNode returns the domains to reconcile when a node has changed: those that it is part of, and that of its clique.
func (r *Reconciler) concernsOfNode(ctx context.Context, o client.Object) []types.UID {
	var concerned []types.UID
	for _, uid := range domainsOfNode(o) {
		if uid != "" {
			concerned = append(concerned, types.UID(uid))
		}
	}
	// The cache returns an error only when it has stopped.
	if clique, err := r.clique(ctx, o.GetLabels()[v1beta1.LabelClique]); err == nil && clique != nil {
		concerned = append(concerned, clique.UID)
	}
	return concerned
}

// summarise writes the words that kubectl get prints.
func summarise(domain *v1beta1.ComputeDomain) {
	status := &domain.Status
	ready := 0
	for _, node := range status.Nodes {
		if node.Status == v1beta1.Ready {
			ready++
		}
	}
	summary := v1beta1.ComputeDomainSummary{Ready: fmt.Sprintf("%d/%d", ready, max(domain.Spec.NumNodes, len(status.Nodes)))}
	switch len(status.Cliques) {
	case 0:
	case 1:
		summary.Clique = status.Cliques[0].ID
	default:
		summary.Clique = fmt.Sprintf("%d cliques", len(status.Cliques))
	}
	var channels []string
	for _, clique := range status.Cliques {
		if clique.Channel != nil {
			channels = append(channels, strconv.Itoa(*clique.Channel))
		}
	}
	slices.Sort(channels)
	if channels = slices.Compact(channels); len(channels) > 0 {
		summary.Channel = listed(channels)
	}
	if domain.Spec.Channel.AllocationMode == v1beta1.AllocationModeAll {
		summary.Channel = string(v1beta1.AllocationModeAll)
	}
	status.Summary = summary
}
