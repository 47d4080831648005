/* app.js - a chat, and a view of the engine's work.
 *
 * All data comes from this server, by fetch, with the key if the server requires one. The model's
 * output enters the page as text, never as markup. No library, no other host. */
'use strict';

const $ = (id) => document.getElementById(id);

/* A new element: tag, class, text, children. */
function make(tag, name, text, ...inside) {
  const e = document.createElement(tag);
  if (name) e.className = name;
  if (text) e.textContent = text;
  e.append(...inside);
  return e;
}

function say(text, bad) {
  $('state').textContent = text;
  $('state').classList.toggle('bad', !!bad);
}

const sleep = (ms) => new Promise((done) => setTimeout(done, ms));

/* ---- asking the server ------------------------------------------------------------------------ */

const store = window.sessionStorage;

class Refused extends Error {}

function call(path, more = {}) {
  const headers = { 'Content-Type': 'application/json' };
  const key = store.getItem('key');
  if (key) headers.Authorization = 'Bearer ' + key;
  return fetch(path, { cache: 'no-store', credentials: 'omit', ...more, headers });
}

/* Throws a Refused with one sentence for an error status; status 401 shows the form for the key. */
async function check(res) {
  if (res.ok) return res;
  let text = 'The server answered with status ' + res.status + '.';
  try {
    text = (await res.json()).error.message || text;
  } catch (e) { /* no message: the status is the sentence */ }
  if (res.status === 401) {
    ask_key();
    text = 'The server requires a key.';
  }
  throw new Refused(text);
}

/* Yields the events of a stream as they arrive. */
async function* events(body) {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  let text = '';
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    text += decoder.decode(value, { stream: true });
    let end;
    while ((end = text.indexOf('\n\n')) >= 0) {
      const event = { name: 'message', data: '' };
      for (const line of text.slice(0, end).split('\n')) {
        if (line.startsWith('event: ')) event.name = line.slice(7);
        else if (line.startsWith('data: ')) event.data += line.slice(6);
      }
      text = text.slice(end + 2);
      if (event.data) yield event;
    }
  }
}

/* ---- the key ---------------------------------------------------------------------------------- */

function ask_key() {
  const wrong = store.getItem('key') !== null;
  $('key-problem').textContent = wrong ? 'The server does not accept this key.' : '';
  $('ask-key').hidden = false;
  $('key').value = '';
  $('key').focus();
  store.removeItem('key');
}

$('ask-key').addEventListener('submit', (ev) => {
  ev.preventDefault();
  if (!$('key').value) return;
  store.setItem('key', $('key').value);
  begin();
});

/* Waits for the model, then for a key that is right. */
async function begin() {
  try {
    for (;;) {
      const health = await fetch('health', { cache: 'no-store' });
      const state = await health.json();
      if (health.ok) break;
      say(state.status === 'loading'
        ? 'The model is loading'
        : 'The server is stopping.');
      await sleep(1000);
    }
    const list = await (await check(await call('v1/models'))).json();
    $('model').textContent = list.data.length ? list.data[0].id : '';
    $('ask-key').hidden = true;
    $('key-problem').textContent = '';
    say('');
    watch();
  } catch (e) {
    if (e instanceof Refused) {
      say(e.message, true);
      return;
    }
    say('The server cannot be reached; trying again.', true);
    await sleep(2000);
    begin();
  }
}

/* ---- the conversation ------------------------------------------------------------------------- */

let turns = [];                          // { role, content, reasoning, note, problem }
let running = null;                      // AbortController of the running answer

try {
  turns = JSON.parse(store.getItem('turns')) || [];
} catch (e) { /* start a new conversation */ }

function keep_turns() {
  try {
    store.setItem('turns', JSON.stringify(turns));
  } catch (e) { /* too long for the store: a reload starts a new conversation */ }
}

function copy_button(text) {
  const b = make('button', '', 'Copy');
  b.type = 'button';
  b.addEventListener('click', async () => {
    try {
      await navigator.clipboard.writeText(text());
      b.textContent = 'Copied';
    } catch (e) {
      b.textContent = 'Not allowed';
    }
    setTimeout(() => { b.textContent = 'Copy'; }, 1500);
  });
  return b;
}

/* A paragraph with inline `code`. */
function words(text) {
  const p = make('p');
  text.split(/(`[^`\n]+`)/).forEach((part, i) => {
    p.append(i % 2 ? make('code', '', part.slice(1, -1)) : part);
  });
  return p;
}

/* Text with code blocks between lines of ```; the last block may still be open. */
function paint_text(into, text) {
  const parts = text.split(/^```[^\n]*\n?/m);
  const list = [];
  parts.forEach((part, i) => {
    if (i % 2) {
      const block = make('div', 'block', '', make('pre', '', '', make('code', '', part)));
      block.append(copy_button(() => part));
      list.push(block);
    } else if (part.trim()) {
      list.push(words(part.trim()));
    }
  });
  into.replaceChildren(...list);
}

function paint_turn(turn, last) {
  const box = make('article', 'turn ' + turn.role);
  if (turn.reasoning) {
    const d = make('details', 'reasoning', '', make('summary', '', 'Reasoning'),
                   make('div', '', turn.reasoning));
    d.open = !!turn.open;
    d.addEventListener('toggle', () => { turn.open = d.open; });
    box.append(d);
  }
  const said = make('div', 'said');
  if (turn.role === 'user') said.textContent = turn.content;
  else paint_text(said, turn.content);
  box.append(said);
  if (turn.problem) box.append(make('p', 'problem', turn.problem));
  if (turn.role === 'assistant' && !(last && running)) {
    const below = make('div', 'below', '', copy_button(() => turn.content));
    if (last) {
      const again = make('button', 'again', 'Try again');
      again.type = 'button';
      again.addEventListener('click', retry);
      below.append(again);
    }
    if (turn.note) below.append(make('span', 'note', turn.note));
    box.append(below);
  }
  return box;
}

function at_bottom() {
  const log = $('log');
  return log.scrollHeight - log.scrollTop - log.clientHeight < 60;
}

function paint_all() {
  const stay = at_bottom();
  $('log').replaceChildren(...turns.map((t, i) => paint_turn(t, i === turns.length - 1)));
  if (!turns.length) $('log').append(make('p', 'empty', 'No messages yet.'));
  if (stay) $('log').scrollTop = $('log').scrollHeight;
  $('stop').hidden = !running;
  $('send').hidden = !!running;
  $('fresh').disabled = !turns.length;
}

/* Repaints the last turn, at most every 80 ms. */
let painting = false;
function paint_last() {
  if (painting) return;
  painting = true;
  setTimeout(() => {
    painting = false;
    if (!running || !turns.length || !$('log').lastElementChild) return;
    const stay = at_bottom();
    $('log').lastElementChild.replaceWith(paint_turn(turns[turns.length - 1], true));
    if (stay) $('log').scrollTop = $('log').scrollHeight;
  }, 80);
}

function note_of(usage, seconds, first) {
  if (!usage) return '';
  const cached = (usage.prompt_tokens_details || {}).cached_tokens || 0;
  const span = seconds - first;
  let text = usage.completion_tokens + ' tokens';
  if (usage.completion_tokens > 1 && span > 0)
    text += ', ' + number((usage.completion_tokens - 1) / span) + ' a second';
  text += '; prompt of ' + usage.prompt_tokens + ' tokens';
  if (cached > 0) text += ', ' + cached + ' of them cached';
  return text;
}

async function answer() {
  const turn = { role: 'assistant', content: '', reasoning: '' };
  const messages = turns.filter((t) => t.content || t.role === 'user')
    .map((t) => ({ role: t.role, content: t.content }));
  const began = performance.now();
  let usage = null, first = 0;
  turns.push(turn);
  running = new AbortController();
  paint_all();
  try {
    const res = await check(await call('v1/chat/completions', {
      method: 'POST', signal: running.signal,
      body: JSON.stringify({ messages, stream: true, stream_options: { include_usage: true } }),
    }));
    for await (const event of events(res.body)) {
      if (event.data === '[DONE]') break;
      const chunk = JSON.parse(event.data);
      if (chunk.error) throw new Refused(chunk.error.message);
      if (chunk.usage) usage = chunk.usage;
      const delta = chunk.choices.length ? chunk.choices[0].delta : {};
      if (!first && (delta.content || delta.reasoning_content))
        first = (performance.now() - began) / 1000;
      turn.content += delta.content || '';
      turn.reasoning += delta.reasoning_content || '';
      paint_last();
    }
    turn.note = note_of(usage, (performance.now() - began) / 1000, first);
  } catch (e) {
    if (e.name === 'AbortError') turn.note = 'stopped';
    else turn.problem = e instanceof Refused ? e.message : 'The connection was lost.';
  }
  running = null;
  keep_turns();
  paint_all();
}

function retry() {
  if (running || !turns.length) return;
  if (turns[turns.length - 1].role === 'assistant') turns.pop();
  if (turns.length) answer();
  else paint_all();
}

function send() {
  const text = $('text').value.trim();
  if (running || !text) return;
  $('text').value = '';
  turns.push({ role: 'user', content: text });
  keep_turns();
  answer();
}

$('say').addEventListener('submit', (ev) => {
  ev.preventDefault();
  send();
});
$('text').addEventListener('keydown', (ev) => {
  if (ev.key !== 'Enter' || ev.shiftKey || ev.isComposing) return;
  ev.preventDefault();
  send();
});
$('stop').addEventListener('click', () => { if (running) running.abort(); });
$('fresh').addEventListener('click', () => {
  if (running) running.abort();
  turns = [];
  keep_turns();
  paint_all();
  $('text').focus();
});
$('show-chat').addEventListener('click', () => document.body.classList.remove('on-live'));
$('show-live').addEventListener('click', () => {
  document.body.classList.add('on-live');
  size_map();
});

/* ---- figures ---------------------------------------------------------------------------------- */

function number(n) {
  if (n >= 100) return Math.round(n).toLocaleString('en');
  return n >= 10 ? n.toFixed(1) : n.toFixed(2).replace(/\.?0+$/, '');
}

function bytes(n) {
  const units = ['B', 'kB', 'MB', 'GB', 'TB'];
  let u = 0;
  for (; n >= 999.5 && u < 4; u++) n /= 1000;
  return (u === 0 || n >= 100 ? Math.round(n) : n.toFixed(1)) + ' ' + units[u];
}

const count = (n) => n.toLocaleString('en');

/* ---- the map ---------------------------------------------------------------------------------- */

const DIGITS = 'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/';
const VALUE = new Uint8Array(128);
for (let i = 0; i < 64; i++) VALUE[DIGITS.charCodeAt(i)] = i;
const FLASH = 5;                         // steps until a change has faded
const TIERS = ['on the drive', 'in RAM', 'in VRAM'];    // a fourth: the layer has no experts

let shape = null;                        // { n_layer, n_bank, n_expert, plan, ... }: the first event
let cells = null;                        // Uint8Array: 16 * tier + heat
let flash = null;                        // Int8Array: > 0 moved in, < 0 evicted
let image = null;                        // pixels and sizes of the map
let shades = null;                       // [tier][heat] and [flash] as pixels
let fading = 0;

function colour(name) {
  const text = getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  return [1, 3, 5].map((i) => parseInt(text.slice(i, i + 2), 16));
}

function pixel(a, b, share) {
  const c = a.map((v, i) => Math.round(v + (b[i] - v) * share));
  return (255 << 24 | c[2] << 16 | c[1] << 8 | c[0]) >>> 0;
}

function mix_shades() {
  const back = colour('--back');
  const places = ['--drive', '--ram', '--vram'].map(colour);
  const come = colour('--in'), go = colour('--out');
  shades = { cell: new Uint32Array(64), come: [], go: [] };    // transparent where there is no expert
  for (let i = 0; i < 48; i++)
    shades.cell[i] = pixel(back, places[i >> 4], 0.22 + 0.78 * (i & 15) / 15);
  for (let s = 0; s <= FLASH; s++) {
    shades.come.push(pixel(back, come, 0.3 + 0.7 * s / FLASH));
    shades.go.push(pixel(back, go, 0.3 + 0.7 * s / FLASH));
  }
}

/* Cells are at least 3 points wide: a layer of many experts takes several rows. */
function size_map() {
  const canvas = $('map');
  if (!shape || !canvas.clientWidth) return;
  const dense = window.devicePixelRatio || 1;
  const width = Math.floor(canvas.clientWidth * dense);
  let across = shape.n_expert;
  while (across > 8 && width / across < 3 * dense) across = Math.ceil(across / 2);
  const cell = Math.max(1, Math.min(Math.floor(width / across), Math.round(18 * dense)));
  const rows = Math.ceil(shape.n_expert / across);
  const gap = rows > 1 ? Math.max(1, Math.round(2 * dense)) : 0;
  const high = shape.n_layer * (rows * cell + gap);
  canvas.width = width;
  canvas.height = high;
  canvas.style.height = high / dense + 'px';
  const context = canvas.getContext('2d');
  image = { context, data: context.createImageData(width, high), across, cell, rows, gap, dense,
            seen: new Uint32Array(shape.n_layer * shape.n_expert) };
  image.pixels = new Uint32Array(image.data.data.buffer);
  paint_map();
}

/* Repaints the cells that changed. */
function paint_map() {
  if (!image || !cells || !shades) return;
  const { across, cell, rows, gap, seen, pixels } = image;
  const width = image.data.width, inner = cell > 4 ? cell - 1 : cell;
  let changed = false;
  for (let i = 0; i < cells.length; i++) {
    const f = flash[i];
    const want = f > 0 ? shades.come[f] : f < 0 ? shades.go[-f] : shades.cell[cells[i]];
    if (seen[i] === want) continue;
    seen[i] = want;
    changed = true;
    const l = Math.floor(i / shape.n_expert), e = i % shape.n_expert;
    const x = (e % across) * cell;
    const y = l * (rows * cell + gap) + Math.floor(e / across) * cell;
    for (let r = 0; r < inner; r++) {
      const first = (y + r) * width + x;
      pixels.fill(want, first, first + inner);
    }
  }
  if (changed) image.context.putImageData(image.data, 0, 0);
}

/* Fades changes, also without new events. */
function fade() {
  let any = false;
  for (let i = 0; i < flash.length; i++) {
    if (!flash[i]) continue;
    flash[i] -= Math.sign(flash[i]);
    any = any || flash[i] !== 0;
  }
  paint_map();
  fading = any ? setTimeout(fade, 160) : 0;
}

function take_map(text) {
  const old = cells, n = [0, 0, 0, 0];
  if (text.length !== shape.n_layer * shape.n_expert) return;
  cells = new Uint8Array(text.length);
  if (!flash || flash.length !== text.length) flash = new Int8Array(text.length);
  let any = false;
  for (let i = 0; i < text.length; i++) {
    cells[i] = VALUE[text.charCodeAt(i) & 127];
    n[cells[i] >> 4]++;
    const moved = old && old.length === cells.length ? (cells[i] >> 4) - (old[i] >> 4) : 0;
    if (moved) {
      flash[i] = FLASH * Math.sign(moved);
      any = true;
    }
  }
  $('n-drive').textContent = count(n[0]);
  $('n-ram').textContent = count(n[1]);
  $('n-vram').textContent = count(n[2]);
  paint_map();
  if (any && !fading) fading = setTimeout(fade, 160);
}

const HINT = $('hint').textContent;
$('map').addEventListener('mousemove', (ev) => {
  if (!image || !cells) return;
  const { across, cell, rows, gap, dense } = image;
  const x = Math.floor(ev.offsetX * dense / cell), y = ev.offsetY * dense;
  const l = Math.floor(y / (rows * cell + gap));
  const e = Math.floor((y - l * (rows * cell + gap)) / cell) * across + x;
  const inside = x < across && e < shape.n_expert && l < shape.n_layer;
  const place = inside ? TIERS[cells[l * shape.n_expert + e] >> 4] : '';
  $('hint').textContent = !inside ? HINT
    : 'Layer ' + l + (place ? ', expert ' + e + ': ' + place + '.' : ' has no experts.');
});
$('map').addEventListener('mouseleave', () => { $('hint').textContent = HINT; });

/* ---- the rest of the view --------------------------------------------------------------------- */

function paint_plan(plan) {
  const v = plan.vram, r = plan.ram;
  const places = [
    ['VRAM', 'vram', v.total, [['experts', v.experts], ['dense weights', v.dense],
      ['context', v.context], ['work', v.work + v.streaming + v.post_fetch]]],
    ['RAM', 'ram', r.total, [['experts', r.experts], ['weights, context and buffers',
      r.other + r.repacked_head], ['program and kept states', r.program]]],
    ['Drive', 'drive', plan.drive_experts, [['experts', plan.drive_experts]]],
  ].filter((p) => p[2] > 0);
  const most = Math.max(...places.map((p) => p[2]), 1);
  $('plan').replaceChildren(...places.map(([name, kind, total, parts]) => {
    const bar = make('div', 'bar');
    const shown = parts.filter((p) => p[1] > 0);
    shown.forEach(([label, n], i) => {
      const part = make('i', kind + ' part' + i);
      part.style.width = 100 * n / most + '%';
      part.title = label + ': ' + bytes(n);
      bar.append(part);
    });
    return make('div', 'place', name, make('span', '', bytes(total)), bar,
                make('small', '', shown.map(([label, n]) => label + ' ' + bytes(n)).join(', ')));
  }));
}

function take_hello(hello) {
  shape = hello;
  cells = null;
  flash = null;
  $('model').textContent = hello.model;
  $('shape').textContent = hello.n_layer + ' layers' +
    (hello.n_bank < hello.n_layer ? ', ' + hello.n_bank : '') + ' of ' + hello.n_expert + ' experts, ' +
    hello.n_used + ' for each token; ' + hello.device;
  paint_plan(hello.plan);
  mix_shades();
  size_map();
}

function link(id, rate, most) {
  $(id).textContent = bytes(rate) + '/s' +
    (rate >= 0.01 * most && rate > 0 ? ', ' + Math.round(100 * rate / most) + '% of its limit' : '');
}

const course = [];
function paint_course(rate) {
  const canvas = $('course'), c = canvas.getContext('2d');
  course.push(rate);
  if (course.length > 80) course.shift();
  const most = Math.max(...course, 1);
  c.clearRect(0, 0, canvas.width, canvas.height);
  c.strokeStyle = getComputedStyle(document.documentElement).getPropertyValue('--accent');
  c.beginPath();
  course.forEach((v, i) => c.lineTo((i + 80 - course.length) * canvas.width / 79,
                                    canvas.height - 2 - v / most * (canvas.height - 4)));
  c.stroke();
}

/* The link that is nearly full, else the plan's. */
function bound_of(tick, plan) {
  const s = plan.speeds;
  if (tick.drive_bytes_s > 0.5 * s.disk) return 'the drive';
  if (tick.bus_bytes_s > 0.7 * s.pull) return 'the bus';
  return plan.bound_by;
}

function take_tick(tick) {
  const plan = shape.plan, s = plan.speeds;
  $('tok-s').textContent = number(tick.tok_s);
  paint_course(tick.tok_s);
  $('bound').textContent = tick.tok_s === 0 && tick.prompt_tok_s > 0
    ? 'reading a prompt: ' + number(tick.prompt_tok_s) + ' tokens a second'
    : 'about ' + number(plan.answer_tokens_per_second) + ' expected, limited by ' +
      bound_of(tick, plan);
  $('hits').textContent = tick.hit_rate === null ? '-' : (100 * tick.hit_rate).toFixed(0) + '% of choices';
  link('vram-rate', tick.vram_bytes_s, s.vram_read);
  link('ram-rate', tick.ram_bytes_s, s.cpu);
  link('bus-rate', tick.bus_bytes_s, s.pull);
  link('drive-rate', tick.drive_bytes_s, s.disk);
  $('moves').textContent = count(tick.uploads) + ', ' + count(tick.evictions);
  $('pass').textContent = tick.pass_rows === 0 ? '-' :
    tick.pass_rows.toFixed(1) + ' answers, ' + tick.pass_tokens.toFixed(1) + ' tokens';
  $('drafts').textContent = tick.drafts === 0 ? '-' :
    Math.round(100 * tick.right_drafts / tick.drafts) + '% of ' + count(tick.drafts) + ' right';
  const all = tick.prompt_tokens + tick.cached_tokens;
  $('prefix').textContent = all === 0 ? '-' : Math.round(100 * tick.cached_tokens / all) + '% of ' +
    count(all) + ' tokens cached';
  $('states').textContent = count(tick.states) + ' (' + count(tick.states_in_ram) + ' in RAM, ' +
    count(tick.states_on_drive) + ' on the drive)';
  say(tick.running ? (tick.waiting ? 'answering, ' + tick.waiting + ' waiting' : 'answering') : 'ready');
  if (tick.map) take_map(tick.map);
}

/* ---- watching --------------------------------------------------------------------------------- */

let watching = null;

/* Runs while the page is visible. */
async function watch() {
  if (watching || document.hidden) return;
  const own = watching = new AbortController();
  try {
    const res = await check(await call('moe-events', { signal: own.signal }));
    for await (const event of events(res.body)) {
      if (event.name === 'hello') take_hello(JSON.parse(event.data));
      else if (event.name === 'tick' && shape) take_tick(JSON.parse(event.data));
    }
  } catch (e) {
    if (e instanceof Refused) {
      watching = null;
      say(e.message, true);
      return;
    }
  }
  watching = null;
  if (own.signal.aborted) return;
  say('The server cannot be reached; trying again.', true);
  await sleep(2000);
  begin();
}

document.addEventListener('visibilitychange', () => {
  if (!document.hidden) begin();
  else if (watching) watching.abort();
});
window.addEventListener('resize', size_map);
window.matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => {
  mix_shades();
  if (image) image.seen.fill(0);
  paint_map();
});

paint_all();
begin();
