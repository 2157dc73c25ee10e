// The server's stream: server-sent events, read by fetch, since an EventSource cannot bring a token. The token stays in this module's memory.

let token = '';

// The key of a page that runs on one's own machine comes in the address. It is taken out of it, and kept for a reload of this tab.
export function keyFromAddress() {
  const key = new URLSearchParams(location.hash.slice(1)).get('key');
  if (key) {
    sessionStorage.setItem('key', key);
    history.replaceState(null, '', location.pathname);
  }
  token = key || sessionStorage.getItem('key') || '';
}

export function signIn(text) {
  token = text.trim();
}

function headers() {
  return token ? {Authorization: `Bearer ${token}`} : {};
}

// get reads an answer of the server with the viewer's token. An answer that is a refusal is thrown as an Error with the server's words.
export async function get(path) {
  const answer = await fetch(path, {headers: headers(), cache: 'no-store', credentials: 'same-origin'});
  const body = await answer.json();
  if (!answer.ok) {
    throw new Error(body.error);
  }
  return body;
}

const firstPause = 500;
const longestPause = 15000;

// follow reads the stream for as long as the page is open. It calls on.change with each message, on.state with what the connection does,
// and on.refused where the server wants another token; the promise that on.refused returns is waited for.
export async function follow(on) {
  let pause = firstPause;
  for (;;) {
    let problem = '';
    try {
      const answer = await fetch('api/stream', {headers: headers(), cache: 'no-store', credentials: 'same-origin'});
      if (answer.status === 401) {
        await on.refused(await answer.json());
        continue;
      }
      if (answer.ok) {
        pause = firstPause;
        on.begin();
        const end = await read(answer.body, on);
        if (end) {
          token = '';
          await on.refused(end);
          continue;
        }
        problem = 'the connection was closed';
      } else {
        problem = (await answer.json()).error;
      }
    } catch (error) {
      problem = error.message;
    }
    on.state(`Not live: ${problem}`);
    await new Promise((done) => setTimeout(done, pause));
    pause = Math.min(2 * pause, longestPause);
  }
}

// read takes events until the stream ends; it returns what the server said where it ends the session.
async function read(body, on) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  for (;;) {
    const {done, value} = await reader.read();
    if (done) {
      return null;
    }
    const events = (rest + value).split('\n\n');
    rest = events.pop();
    for (const event of events) {
      let name = '';
      let data = '';
      for (const line of event.split('\n')) {
        if (line.startsWith('event: ')) {
          name = line.slice(7);
        } else if (line.startsWith('data: ')) {
          data = line.slice(6);
        }
      }
      if (name === 'end') {
        reader.cancel();
        return JSON.parse(data);
      }
      if (name === 'change') {
        on.change(JSON.parse(data));
      }
    }
  }
}
