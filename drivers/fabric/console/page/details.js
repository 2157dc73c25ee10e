// What is known of the node, GPU, port, domain, pod, claim or pool that was chosen.

import {byId, element, fill, gibibytes, plural, table} from './dom.js';
import {Doctor} from './doctor.js';
import {holder} from './racks.js';

export class Details {
  constructor(racks) {
    this.racks = racks;
    this.chosen = null; // {kind: 'device', node, key} or {kind, name}, where the kind is one of the doctor's
    this.drawn = {}; // what the body was drawn of
    this.domains = new Map();
    this.from = null;
    this.doctor = new Doctor();
    byId('close').addEventListener('click', () => this.close());
    document.querySelector('aside').addEventListener('click', (event) => {
      const asked = event.target.closest('[data-asks]');
      if (asked) {
        const [kind, name] = asked.dataset.asks.split(/ (.*)/s);
        this.open({kind, name}, byId('details').contains(asked) ? this.from : asked);
      }
    });
  }

  open(chosen, from) {
    this.chosen = chosen;
    this.from = from;
    byId('details').hidden = false;
    this.doctor.about(...(chosen.kind === 'device' ? ['node', chosen.node] : [chosen.kind, chosen.name]));
    this.draw();
    byId('details').focus();
    if (chosen.kind !== 'device' && chosen.kind !== 'domain') {
      this.doctor.ask(); // of these the picture has nothing more to show
    }
  }

  close() {
    byId('details').hidden = true;
    this.chosen = null;
    const back = this.from?.isConnected ? this.from : document.querySelector('#racks [tabindex="0"]');
    back?.focus();
  }

  // draw shows what is chosen as it is now.
  draw() {
    if (!this.chosen) {
      return;
    }
    const of = this.chosen.kind === 'domain' ? this.domains.get(this.chosen.name) : this.racks.node(this.chosen.node);
    if (this.drawn.chosen === this.chosen && this.drawn.of === of) {
      return;
    }
    this.drawn = {chosen: this.chosen, of};
    const [title, ...body] = this.body();
    byId('details-title').textContent = title;
    fill(byId('details-body'), ...body.filter(Boolean));
  }

  body() {
    switch (this.chosen.kind) {
      case 'domain': return this.domain();
      case 'device': return this.device();
      default: return [`${names[this.chosen.kind]} ${this.chosen.name}`];
    }
  }

  device() {
    const node = this.racks.node(this.chosen.node);
    if (!node) {
      return [this.chosen.node, element('p', {text: 'It is not there any more.'})];
    }
    const [kind, name] = this.chosen.key.split(/\/(.*)/s);
    if (kind === 'gpu') {
      const g = (node.gpus || []).find((x) => x.name === name);
      return g ? gpuDetails(node, g) : [name, element('p', {text: 'It is not published any more.'})];
    }
    if (kind === 'port') {
      const p = (node.ports || []).find((x) => x.name === name);
      return p ? portDetails(node, p) : [name, element('p', {text: 'It is not published any more.'})];
    }
    return nodeDetails(node);
  }

  domain() {
    const d = this.domains.get(this.chosen.name);
    if (!d) {
      return [this.chosen.name, element('p', {text: 'It is not there any more.'})];
    }
    return [`Domain ${d.name}`,
      facts([['Ready', d.ready ? 'yes' : 'no'], ['Why', d.why], ['Nodes', `${d.up} of ${Math.max(d.wanted, (d.members || []).length)} ready`],
        ['Joining', (d.joining || []).join(', ')]]),
      d.members?.length ? table('Members', ['Node', 'Index', 'Clique', 'Ready'],
        d.members.map((m) => [m.node, m.index, m.clique || '', m.ready ? 'yes' : 'no'])) : null];
  }
}

const names = {pod: 'Pod', claim: 'Claim', pool: 'RDMA pool'};

// asks makes a button that opens what the doctor says of an object.
export function asks(kind, name, text = name) {
  return element('button', {type: 'button', class: 'asks', text, title: `What the doctor says of ${kind} ${name}`, data: {asks: `${kind} ${name}`}});
}

// by is who holds something: the first pod, which the doctor can be asked about.
function by(hold) {
  return hold.pods?.length ? asks('pod', `${hold.claim.split('/')[0]}/${hold.pods[0]}`, holder(hold)) : holder(hold);
}

function facts(pairs) {
  const list = element('dl');
  for (const [name, value] of pairs) {
    if (value !== undefined && value !== null && value !== '' && value !== -1) {
      list.append(element('dt', {text: name}), element('dd', {text: value}));
    }
  }
  return list;
}

function taints(all) {
  return (all || []).map((t) => `${t.key}${t.value ? `=${t.value}` : ''}:${t.effect}`).join(', ');
}

function holds(all) {
  if (!all?.length) {
    return null;
  }
  return table('Held by', ['What', 'How much', 'By', 'Claim'], all.map((h) => [h.form || h.device,
    [gibibytes(h.memory), h.cores && `${h.cores}% of cores`, h.shares && plural(h.shares, 'share'), h.slots && plural(h.slots, 'slot'),
      h.bandwidth && `${h.bandwidth} Gb/s`].filter(Boolean).join(', '), by(h), asks('claim', h.claim)]));
}

function nodeDetails(n) {
  const count = (s) => (n.gpus || []).filter((g) => g.state === s).length;
  const states = ['free', 'partly', 'held', 'tainted', 'broken'].filter(count).map((s) => `${count(s)} ${s}`).join(', ');
  return [`Node ${n.name}`,
    facts([['State', [n.ready ? 'ready' : 'not ready', n.cordoned ? 'cordoned' : ''].filter(Boolean).join(', ')], ['Clique', n.clique],
      ['Domains', (n.domains || []).join(', ')], ['GPUs', `${plural((n.gpus || []).length, 'GPU')}: ${states || 'none'}`],
      ['Ports', (n.ports || []).length]]),
    n.notes ? element('ul', {class: 'bad'}, ...n.notes.map((text) => element('li', {text}))) : null,
    n.imex?.length ? element('h3', {text: 'IMEX'}) : null, holds(n.imex),
    n.gone?.length ? element('h3', {text: 'Held, and not published any more'}) : null, holds(n.gone),
    n.counted?.length ? table('Extended resources', ['Resource', 'Requested', 'Allocatable', 'Pods'],
      n.counted.map((c) => [c.resource, c.requested, c.allocatable, (c.pods || []).join(', ')])) : null];
}

function gpuDetails(n, g) {
  return [`${g.name} of ${n.name}`,
    facts([['State', g.state], ['Product', g.product], ['Index', g.index], ['UUID', g.uuid], ['Memory', gibibytes(g.memory)],
      ['Offered', (g.offers || []).join(', ')], ['MIG slices', g.memorySlices], ['Shares', g.shares], ['Clique', g.clique || n.clique],
      ['NVLink', g.nvlink], ['PCI', g.pci], ['Switch', g.switch], ['PCIe root', g.root], ['NUMA node', g.numa], ['Taints', taints(g.taints)]]),
    holds(g.holds)];
}

function portDetails(n, p) {
  return [`${p.device || p.name} of ${n.name}`,
    facts([['State', p.state], ['Port', p.port], ['Interface', p.interface], ['Link', p.linkLayer], ['Rate', p.rateGbps ? `${p.rateGbps} Gb/s` : ''],
      ['Rail', p.rail], ['Pool', p.pool], ['Slots', p.slots], ['PCI', p.pci], ['Switch', p.switch], ['PCIe root', p.root], ['NUMA node', p.numa],
      ['Taints', taints(p.taints)]]),
    holds(p.holds)];
}
