// Keys among the racks: one device is in the tab order at a time; arrows move it.

import {byId} from './dom.js';

// move gives the focus to a device or a node's name, and the tab order with it.
export function move(target) {
  if (!target) {
    return;
  }
  for (const old of document.querySelectorAll('#racks [tabindex="0"]')) {
    old.tabIndex = -1;
  }
  target.tabIndex = 0;
  target.focus();
  target.scrollIntoView({block: 'nearest'});
}

// beside is the same place in the next or previous node that can be seen.
function beside(node, index, step) {
  const all = [...document.querySelectorAll('#racks .node')];
  for (let i = all.indexOf(node) + step; i >= 0 && i < all.length; i += step) {
    const keys = all[i].querySelectorAll('[data-key]');
    if (keys.length > 0) {
      return keys[Math.min(index, keys.length - 1)];
    }
  }
  return null;
}

byId('racks').addEventListener('keydown', (event) => {
  const target = event.target.closest('[data-key]');
  if (!target || event.ctrlKey || event.metaKey || event.altKey) {
    return;
  }
  const node = target.closest('.node');
  const keys = [...node.querySelectorAll('[data-key]')];
  const index = keys.indexOf(target);
  const otherRack = (step) => {
    const all = [...document.querySelectorAll('#racks .rack')];
    return all[all.indexOf(node.closest('.rack')) + step]?.querySelector('[data-key]');
  };
  const go = {
    ArrowRight: () => keys[index + 1],
    ArrowLeft: () => keys[index - 1],
    ArrowDown: () => beside(node, index, 1),
    ArrowUp: () => beside(node, index, -1),
    Home: () => keys[0],
    End: () => keys[keys.length - 1],
    PageDown: () => otherRack(1),
    PageUp: () => otherRack(-1),
  }[event.key];
  if (go) {
    event.preventDefault();
    move(go());
  }
});
