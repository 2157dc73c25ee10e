// The doctor's answer about what is shown in the details. It stands beside them and is not drawn again when the cluster changes: an answer
// is that of the moment when it was asked for.

import {byId, element} from './dom.js';
import {get} from './stream.js';

export class Doctor {
  constructor() {
    this.subject = null; // {kind, name}
    this.asking = null; // the subject that is asked about
    byId('doctor-ask').addEventListener('click', () => this.ask());
  }

  // about says what the next question is about, and takes the answer about something else away.
  about(kind, name) {
    if (this.subject?.kind === kind && this.subject.name === name) {
      return;
    }
    this.subject = {kind, name};
    byId('doctor-command').textContent = `gpufabric doctor ${kind} ${name}`;
    byId('doctor-answer').replaceChildren();
  }

  async ask() {
    const subject = this.subject;
    if (!subject || this.asking === subject) {
      return;
    }
    this.asking = subject;
    byId('doctor-answer').replaceChildren('Asking the doctor');
    let body;
    try {
      body = draw(await get(`api/doctor?${new URLSearchParams(subject)}`));
    } catch (error) {
      body = [element('p', {class: 'bad', text: error.message})];
    }
    if (this.asking === subject) {
      this.asking = null;
    }
    if (this.subject === subject) {
      byId('doctor-answer').replaceChildren(...body);
    }
  }
}

function draw(opinion) {
  const body = [];
  const first = opinion.first;
  if (first) {
    body.push(element('h3', {text: `${first.code} (${first.stage})`}), element('p', {text: first.says}));
    const list = element('dl');
    for (const [name, value] of [['On', objects(first)], ['Read from', first.from], ['Do', first.do], ['See', first.entry]]) {
      list.append(element('dt', {text: name}), element('dd', {text: value}));
    }
    body.push(list);
  } else {
    body.push(element('p', {text: `${opinion.subject}: nothing was found that keeps it from working.`}));
  }
  if (opinion.behind?.length) {
    body.push(element('h3', {text: 'Waits behind it, or is broken too'}),
      element('ul', {}, ...opinion.behind.slice(0, 12).map((f) => element('li', {text: `${f.code} (${f.stage}, ${objects(f)}): ${f.says}`}))));
  }
  if (opinion.lacking?.length) {
    body.push(element('h3', {text: 'Not seen'}), element('ul', {}, ...opinion.lacking.slice(0, 12).map((text) => element('li', {text}))));
  }
  return body;
}

function objects(found) {
  const all = found.objects || [];
  const more = found.count - all.length;
  return all.join(', ') + (more > 0 ? ` and ${more} more` : '');
}
