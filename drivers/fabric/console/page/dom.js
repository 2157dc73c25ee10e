// Elements are made here alone. What objects of the cluster say is only ever text.

export function element(tag, options = {}, ...children) {
  const e = document.createElement(tag);
  for (const [name, value] of Object.entries(options)) {
    if (name === 'class') {
      e.className = value;
    } else if (name === 'text') {
      e.textContent = value;
    } else if (name === 'data') {
      Object.assign(e.dataset, value);
    } else if (name === 'click') {
      e.addEventListener('click', value);
    } else if (value !== undefined && value !== false) {
      e.setAttribute(name, value);
    }
  }
  e.append(...children.filter((c) => c !== null && c !== undefined));
  return e;
}

export const byId = (id) => document.getElementById(id);

// fill replaces what a place shows, and leaves the focus on the button that asks about the same object.
export function fill(place, ...children) {
  const asked = place.contains(document.activeElement) ? document.activeElement.dataset.asks : undefined;
  place.replaceChildren(...children);
  if (asked !== undefined) {
    [...place.querySelectorAll('[data-asks]')].find((e) => e.dataset.asks === asked)?.focus({preventScroll: true});
  }
}

export function table(caption, heads, rows) {
  const body = element('tbody');
  for (const row of rows) {
    const line = element('tr');
    for (const cell of row) {
      line.append(element('td', {}, cell instanceof Node ? cell : String(cell)));
    }
    body.append(line);
  }
  const head = element('tr');
  for (const h of heads) {
    head.append(element('th', {scope: 'col', text: h}));
  }
  return element('table', {'aria-label': caption}, element('thead', {}, head), body);
}

export function gibibytes(bytes) {
  return bytes ? `${(bytes / 2 ** 30).toFixed(1)} GiB` : '';
}

export function ago(seconds, now = Date.now()) {
  const s = Math.max(0, Math.round(now / 1000 - seconds));
  if (s < 90) {
    return `${s} s`;
  }
  if (s < 5400) {
    return `${Math.round(s / 60)} min`;
  }
  return s < 172800 ? `${Math.round(s / 3600)} h` : `${Math.round(s / 86400)} d`;
}

export function plural(n, noun) {
  return `${n} ${noun}${n === 1 ? '' : 's'}`;
}
