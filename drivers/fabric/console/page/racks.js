// Racks, and in them nodes with their GPUs and ports. A change draws the nodes that changed and no other, a few milliseconds in each frame.

import {element, plural} from './dom.js';

const frameBudget = 8; // milliseconds of drawing a frame, which leaves the rest of its 16 to the browser
// A picture that begins is drawn in larger steps: each frame costs the browser a layout, and a thousand nodes in small steps need a hundred.
const firstBudget = 40;
const cliqueColours = 10;

export class Racks {
  constructor(place) {
    this.place = place;
    this.parts = new Map(); // node/NAME and rack/KIND/ID
    this.racks = new Map(); // part name to {element, nodes}
    this.nodes = new Map(); // node name to its element
    this.dirty = new Set(); // node names
    this.cliques = new Map(); // clique to colour
    this.forming = new Set(); // names of domains that are not ready
    this.filter = () => true;
    this.search = '';
    this.drawing = false;
    this.whole = false; // all parts of the present picture have come
    this.filling = true; // the first whole picture is not drawn yet
    this.drawn = () => {};
  }

  node(name) {
    return this.parts.get(`node/${name}`);
  }

  set(name, part) {
    this.parts.set(name, part);
    if (name.startsWith('node/')) {
      this.dirty.add(part.name);
    } else {
      this.layOut(name, part);
    }
  }

  remove(name) {
    this.parts.delete(name);
    if (name.startsWith('node/')) {
      const node = name.slice(5);
      this.nodes.get(node)?.remove();
      this.nodes.delete(node);
      this.dirty.delete(node);
    } else {
      this.racks.get(name)?.element.remove();
      this.racks.delete(name);
    }
  }

  clear() {
    this.whole = false;
    this.filling = true;
    for (const name of [...this.parts.keys()]) {
      this.remove(name);
    }
  }

  // layOut puts a rack among the others and its nodes into it. Their content comes with the nodes.
  layOut(name, part) {
    let rack = this.racks.get(name);
    if (!rack) {
      const title = element('h2');
      const nodes = element('div', {class: 'nodes'});
      rack = {element: element('section', {class: 'rack'}, title, nodes), title, nodes};
      this.racks.set(name, rack);
    }
    const label = part.kind === 'none' ? 'Nodes of no known rack' : part.kind === 'label' ? `Rack ${part.id}` : `Rack ${part.place + 1}`;
    rack.title.replaceChildren(label, ' ', element('small', {text: `${plural(part.nodes.length, 'node')}${part.kind === 'nvlink' ? `, NVLink fabric ${part.id}` : ''}`}));
    rack.element.setAttribute('aria-label', `${label}, ${plural(part.nodes.length, 'node')}`);
    rack.element.dataset.place = part.place;
    for (const clique of part.cliques || []) {
      if (!this.cliques.has(clique)) {
        this.cliques.set(clique, this.cliques.size % cliqueColours);
      }
    }
    rack.nodes.replaceChildren(...part.nodes.map((n) => this.shell(n)));
    const after = [...this.place.children].find((other) => Number(other.dataset.place) > part.place && other !== rack.element);
    if (rack.element.parentNode !== this.place || rack.element.nextElementSibling !== (after || null)) {
      this.place.insertBefore(rack.element, after || null);
    }
  }

  shell(name) {
    let node = this.nodes.get(name);
    if (!node) {
      node = element('div', {class: 'node', role: 'group', data: {node: name}});
      this.nodes.set(name, node);
      this.dirty.add(name);
    }
    return node;
  }

  // schedule draws what is dirty, in as many frames as it takes.
  schedule() {
    if (this.drawing) {
      return;
    }
    this.drawing = true;
    const frame = () => {
      const end = performance.now() + (this.filling ? firstBudget : frameBudget);
      for (const name of this.dirty) {
        this.dirty.delete(name);
        this.draw(name);
        if (performance.now() > end) {
          break;
        }
      }
      if (this.dirty.size > 0) {
        requestAnimationFrame(frame);
        return;
      }
      this.drawing = false;
      this.filling &&= !this.whole;
      this.drawn();
    };
    requestAnimationFrame(frame);
  }

  draw(name) {
    const part = this.node(name);
    const at = this.nodes.get(name);
    if (!part || !at) {
      return;
    }
    const focused = at.contains(document.activeElement) ? document.activeElement.dataset.key : null;
    const current = at.querySelector('[tabindex="0"]')?.dataset.key;
    at.className = ['node', this.cliques.has(part.clique) ? `c${this.cliques.get(part.clique)}` : '', part.ready ? '' : 'down',
      part.cordoned ? 'cordoned' : '', part.notes || part.gone ? 'noted' : ''].join(' ');
    const domain = (part.domains || []).map((d) => element('span',
      {class: this.forming.has(d) ? 'domain forming' : 'domain', text: this.forming.has(d) ? `${d} (forming)` : d}));
    const title = element('button', {class: 'name', type: 'button', tabindex: -1, title: name, data: {key: 'name'}, 'aria-label': describe(part)}, name, ...domain);
    const gpus = element('div', {class: 'gpus'}, ...(part.gpus || []).map(drawGPU));
    const ports = element('div', {class: 'ports'}, ...(part.ports || []).map((p) => element('button', {class: `port ${p.state}`, type: 'button', tabindex: -1,
      data: {key: `port/${p.name}`}, title: `${p.device || p.name}: ${p.state}`, 'aria-label': `port ${p.device || p.name}, ${p.state}${held(p.holds)}`})));
    at.replaceChildren(title, gpus, ports);
    this.mark(at, part);
    for (const key of [focused, current]) {
      const again = key && [...at.querySelectorAll('[data-key]')].find((e) => e.dataset.key === key);
      if (again) {
        again.tabIndex = 0;
        if (key === focused) {
          again.focus({preventScroll: true});
        }
      }
    }
  }

  // mark dims a node that is not looked for.
  mark(at, part) {
    const shown = this.filter(part);
    const found = this.search === '' || haystack(part).includes(this.search);
    at.classList.toggle('dim', !shown || !found);
    at.classList.toggle('hit', shown && found && this.search !== '');
    return shown && found;
  }

  // find marks all nodes by what is searched for and shown, and returns the names of those that match.
  find(search, filter) {
    this.search = search.trim().toLowerCase();
    this.filter = filter;
    const found = [];
    for (const [name, at] of this.nodes) {
      const part = this.node(name);
      if (part && this.mark(at, part)) {
        found.push(name);
      }
    }
    return found;
  }

  // formingNow takes the domains that are not ready, and draws again the nodes of those that changed.
  formingNow(names) {
    const changed = new Set([...names].filter((d) => !this.forming.has(d)).concat([...this.forming].filter((d) => !names.has(d))));
    this.forming = names;
    if (changed.size === 0) {
      return;
    }
    for (const [name, part] of this.parts) {
      if (name.startsWith('node/') && (part.domains || []).some((d) => changed.has(d))) {
        this.dirty.add(part.name);
      }
    }
  }
}

// haystack is the text in which a node is looked for. Few people search, so it is made at the first search.
const haystacks = new WeakMap();

function haystack(part) {
  if (!haystacks.has(part)) {
    haystacks.set(part, JSON.stringify(part).toLowerCase());
  }
  return haystacks.get(part);
}

function held(holds) {
  return holds?.length ? `, held by ${holds.map(holder).join(', ')}` : '';
}

export function holder(hold) {
  const namespace = hold.claim.split('/')[0];
  return hold.pods?.length ? `${namespace}/${hold.pods[0]}${hold.pods.length > 1 ? ` and ${hold.pods.length - 1} more` : ''}` : `claim ${hold.claim}`;
}

function describe(part) {
  const gpus = part.gpus || [];
  const free = gpus.filter((g) => g.state === 'free').length;
  return [part.name, plural(gpus.length, 'GPU'), `${free} free`, plural((part.ports || []).length, 'port'), part.ready ? '' : 'not ready',
    part.cordoned ? 'cordoned' : '', ...(part.domains || []).map((d) => `domain ${d}`)].filter(Boolean).join(', ');
}

// drawGPU draws a GPU with what claims have of it, to scale: MIG instances where their memory slices lie, shares one after the other.
function drawGPU(g) {
  const button = element('button', {class: `gpu ${g.state}`, type: 'button', tabindex: -1, data: {key: `gpu/${g.name}`},
    title: `${g.name} ${g.product || ''}: ${g.state}`, 'aria-label': `${g.name}, ${g.state}${held(g.holds)}`});
  let left = 0;
  for (const h of g.holds || []) {
    if (h.form === 'whole' || h.admin) {
      continue;
    }
    let width = 0.1;
    let at = left;
    if (h.size && g.memorySlices) {
      width = h.size / g.memorySlices;
      at = (h.start || 0) / g.memorySlices;
    } else if (h.shares && g.shares) {
      width = h.shares / g.shares;
    } else if (h.memory && g.memory) {
      width = h.memory / g.memory;
    } else if (h.cores) {
      width = h.cores / 100;
    }
    const part = element('span', {class: 'hold'});
    part.style.left = `${100 * Math.min(at, 1)}%`;
    part.style.width = `${100 * Math.min(width, 1)}%`;
    button.append(part);
    left = Math.min(at + width, 1);
  }
  return button;
}
