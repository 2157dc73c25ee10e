import {ago, byId, element, fill, plural, table} from './dom.js';
import {asks, Details} from './details.js';
import {move} from './keys.js';
import {Racks} from './racks.js';
import {follow, keyFromAddress, signIn} from './stream.js';

const racks = new Racks(byId('racks'));
const details = new Details(racks);
const lists = {domains: details.domains, queue: [], pools: [], totals: {}, missing: [], strays: [], about: {}};
let whole = false;

const filters = {
  all: () => true,
  free: (n) => (n.gpus || []).some((g) => g.state === 'free'),
  held: (n) => (n.gpus || []).some((g) => g.state === 'held' || g.state === 'partly'),
  trouble: (n) => !n.ready || n.cordoned || n.notes || n.gone || (n.gpus || []).some((g) => g.state === 'broken' || g.state === 'tainted') ||
    (n.ports || []).some((p) => p.state === 'broken'),
};

// A change is some parts that are new and some that are gone. Nodes are drawn in the frames to come, the lists at once.
function change(message) {
  const lists0 = new Set();
  for (const name of message.gone || []) {
    if (name.startsWith('domain/')) {
      lists.domains.delete(name.slice(7));
      lists0.add('domains');
    } else {
      racks.remove(name);
    }
  }
  for (const [name, part] of Object.entries(message.parts || {})) {
    if (name.startsWith('node/') || name.startsWith('rack/')) {
      racks.set(name, part);
    } else if (name.startsWith('domain/')) {
      lists.domains.set(name.slice(7), part);
      lists0.add('domains');
    } else {
      lists[name] = part;
      lists0.add(name);
    }
  }
  whole = !message.more;
  racks.whole = whole;
  if (lists0.has('domains')) {
    racks.formingNow(new Set([...lists.domains.values()].filter((d) => !d.ready).map((d) => d.name)));
  }
  racks.schedule();
  drawLists(lists0);
  if (!pressed) {
    details.draw();
  }
}

// pressed: a button of the lists is held down. A list that were drawn again meanwhile would take the button away, and the click with it.
let pressed = false;
const later = new Set();
document.querySelector('aside').addEventListener('pointerdown', () => {
  pressed = true;
});
for (const ends of ['pointerup', 'pointercancel']) {
  document.addEventListener(ends, () => setTimeout(() => { // the click comes after it
    pressed = false;
    drawLists(later);
    details.draw();
    later.clear();
  }));
}

function drawLists(which) {
  if (pressed) {
    which.forEach((list) => later.add(list));
    return;
  }
  if (which.has('domains')) {
    drawDomains();
  }
  if (which.has('queue')) {
    drawQueue();
  }
  if (which.has('pools')) {
    fill(byId('pools'), lists.pools.length ? table('RDMA pools', ['Pool', 'Nodes', 'Healthy', 'Why'],
      lists.pools.map((p) => [asks('pool', p.name), p.nodes, `${p.healthy} of ${p.devices}`, p.ready ? 'ready' : p.why || ''])) : 'None.');
  }
  if (which.has('missing') || which.has('strays') || which.has('about')) {
    drawNotes();
  }
  summary();
}

function summary() {
  const t = lists.totals;
  byId('viewer').textContent = lists.about.user ? `as ${lists.about.user} may see it` : '';
  if (!whole || !lists.about.settled) {
    byId('summary').textContent = 'Reading the cluster';
    return;
  }
  const text = `${plural(t.nodes, 'node')}, ${plural(t.gpus, 'GPU')}: ${t.freeGPUs} free, ${t.partlyHeldGPUs + t.heldGPUs} held, ` +
    `${t.taintedGPUs + t.brokenGPUs} out of service. ${plural(t.ports, 'port')}, ${t.downPorts} down. ` +
    `${plural(t.domains, 'domain')}, ${t.formingDomains} not ready. ${plural(t.waitingPods, 'waiting pod')}.`;
  if (byId('summary').textContent !== text) {
    byId('summary').textContent = text;
  }
}

// Domains that form come first, with how far they are.
function drawDomains() {
  const all = [...lists.domains.values()].sort((a, b) => a.ready - b.ready || (a.name < b.name ? -1 : 1));
  const most = 100;
  const rows = all.slice(0, most).map((d) => {
    const wanted = Math.max(d.wanted, (d.members || []).length, 1);
    const progress = element('progress', {max: wanted, value: d.ready ? wanted : d.up, 'aria-label': `${d.up} of ${wanted} nodes ready`});
    return [asks('domain', d.name), progress, d.ready ? 'ready' : d.deleting ? 'being deleted' : `${d.up} of ${wanted}`];
  });
  fill(byId('domains'), rows.length ? table('Compute domains', ['Domain', 'Nodes', 'State'], rows) : 'None.',
    all.length > most ? element('p', {text: `and ${all.length - most} more`}) : '');
}

function drawQueue() {
  const opened = new Set([...document.querySelectorAll('#queue details[open]')].map((d) => d.dataset.cause));
  fill(byId('queue'), lists.queue.length ? table('Waiting pods by cause', ['Pods', 'Longest', 'Median', 'Wait for'],
    lists.queue.map((c) => [c.pods, ago(c.oldest), ago(c.median), element('details',
      {data: {cause: c.cause}, open: opened.has(c.cause) ? '' : undefined}, element('summary', {text: c.cause}),
      element('ul', {}, ...c.first.map((w) => element('li', {}, asks('pod', w.pod), `${w.node ? ` on ${w.node}` : ''}, ${ago(w.since)}`))),
      c.pods > c.first.length ? `and ${c.pods - c.first.length} more` : '')])) : 'No pod with claims or devices waits.');
}

function drawNotes() {
  const notes = lists.missing.map((m) => `Not shown: ${m.resource}. ${m.why}`);
  if (lists.about.settled) {
    notes.push(...lists.strays.map((h) => `Claim ${h.claim} has device ${h.device} of pool ${h.pool}, which no node publishes.`));
  }
  byId('notes').hidden = notes.length === 0;
  byId('notes').replaceChildren(...notes.slice(0, 20).map((text) => element('li', {text})));
}

function find() {
  const search = byId('search').value;
  const show = byId('show').value;
  const found = racks.find(search, filters[show]);
  byId('matches').textContent = search.trim() || show !== 'all' ? `${plural(found.length, 'node')}` : '';
  return found;
}

byId('search').addEventListener('input', find);
byId('show').addEventListener('change', find);
byId('search').addEventListener('keyup', (event) => { // at keydown the same key would press what the focus moves to
  if (event.key === 'Enter') {
    const [first] = find();
    if (first) {
      const at = racks.nodes.get(first);
      at.scrollIntoView({block: 'center'});
      move(at.querySelector('[data-key]'));
    }
  }
});

byId('racks').addEventListener('click', (event) => {
  const target = event.target.closest('[data-key]');
  if (target) {
    move(target);
    details.open({kind: 'device', node: target.closest('.node').dataset.node, key: target.dataset.key}, target);
  }
});

document.addEventListener('keydown', (event) => {
  if (event.key === 'Escape' && !byId('details').hidden && !byId('signin').open) {
    details.close();
  }
  if (event.key === '/' && !/^(INPUT|SELECT|TEXTAREA)$/.test(document.activeElement.tagName)) {
    event.preventDefault();
    byId('search').focus();
  }
});

function theme(name) {
  document.documentElement.dataset.theme = name;
  byId('theme').setAttribute('aria-pressed', name === 'dark');
}
const dark = matchMedia('(prefers-color-scheme: dark)');
theme(localStorage.getItem('theme') || (dark.matches ? 'dark' : 'light'));
dark.addEventListener('change', () => localStorage.getItem('theme') || theme(dark.matches ? 'dark' : 'light'));
byId('theme').addEventListener('click', () => {
  const next = document.documentElement.dataset.theme === 'dark' ? 'light' : 'dark';
  localStorage.setItem('theme', next);
  theme(next);
});

// refused asks for a token, and ends when one was typed. A page of one's own machine has none to type: it says what to do.
function refused(answer) {
  const dialog = byId('signin');
  byId('signin-why').textContent = answer.error;
  byId('signin-token').hidden = answer.wants !== 'token';
  byId('summary').textContent = 'Not signed in';
  if (!dialog.open) {
    dialog.showModal();
  }
  return new Promise((done) => {
    const enter = (event) => {
      event.preventDefault();
      if (byId('token').value.trim() === '') {
        return;
      }
      signIn(byId('token').value);
      byId('token').value = '';
      byId('signin-token').removeEventListener('submit', enter);
      dialog.close();
      done();
    };
    byId('signin-token').addEventListener('submit', enter);
  });
}

byId('signin').addEventListener('cancel', (event) => event.preventDefault());

racks.drawn = () => {
  if (!document.querySelector('#racks [tabindex="0"]')) {
    const first = document.querySelector('#racks [data-key]');
    if (first) {
      first.tabIndex = 0;
    }
  }
  if (byId('search').value || byId('show').value !== 'all') {
    find();
  }
};

setInterval(drawQueue, 10000); // its times go on by themselves

keyFromAddress();
follow({
  change,
  refused,
  state: (text) => {
    byId('summary').textContent = text;
  },
  begin: () => { // a stream begins with everything
    racks.clear();
    lists.domains.clear();
    whole = false;
  },
});
