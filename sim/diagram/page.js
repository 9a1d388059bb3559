'use strict';
const story = JSON.parse(document.getElementById('story').textContent);
const byId = (id) => document.getElementById(id);
const KINDS = {packet: 3, bar: 2, down: 0, fault: 0, mark: 4, broken: 5};
const items = story.items;
const state = {find: '', quiet: false, fsyncs: true, holds: true, even: true, zoom: 1, step: 0};
let shown = [], places = [], nodes = [];

const make = (name, attributes, parent, text) => {
  const made = document.createElementNS('http://www.w3.org/2000/svg', name);
  for (const key in attributes) made.setAttribute(key, attributes[key]);
  if (text !== undefined) made.textContent = text;
  if (parent) parent.append(made);
  return made;
};
const plain = (name, parent, text, kind) => {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (kind) made.className = kind;
  parent.append(made);
  return made;
};
const withoutNonce = (producer) => {
  const parts = producer.split('.');
  return parts.length === 4 ? [parts[0], parts[1], parts[3]].join('.') : producer;
};
const digits = (time) => time.toFixed(4) + ' s';

function concerns(item, find) {
  const named = /^(.+?)(?:\[(\d+)\]?)?$/.exec(find);
  if (!named) return true;
  return item.ids.some(([producer, start, stop]) =>
    (named[2] === undefined ? producer.includes(named[1]) || withoutNonce(producer).includes(named[1])
      : producer === named[1] || withoutNonce(producer) === named[1])
    && (named[2] === undefined || (start <= +named[2] && +named[2] < stop)));
}

function wanted(item) {
  if (item.tone === 'fsync' && !state.fsyncs) return false;
  if (item.tone === 'hold' && item.kind === 'bar' && !state.holds) return false;
  if (item.tone === 'quiet') return state.quiet && !state.find;
  if (!state.find) return true;
  if (['fault', 'down', 'broken'].includes(item.kind) || ['crash', 'phase'].includes(item.tone)) return true;
  if (item.tone === 'node' && !item.ids.length) return item.text === 'start';
  return concerns(item, state.find);
}

// ------------------------------------------------------------------ the axis: each event has room, long waits have little

function axis() {
  const about = shown.filter((item) => item.tone !== 'fsync' && item.kind !== 'fault' && item.kind !== 'down');
  const base = about.length ? about : shown;
  const times = new Set();
  for (const item of base) {
    times.add(item.at);
    if (item.end !== null) times.add(item.end);
  }
  for (const item of shown) times.add(item.at);
  const sorted = [...times].sort((a, b) => a - b);
  const first = sorted[0] || 0, last = sorted[sorted.length - 1] || 1;
  if (!state.even) {
    const width = 1200 * state.zoom;
    return {x: (time) => 30 + width * (Math.min(time, last) - first) / ((last - first) || 1), sorted, width: width + 160};
  }
  const at = [30];
  for (let index = 1; index < sorted.length; index += 1) {
    const gap = sorted[index] - sorted[index - 1];
    const room = Math.min(150, 2 + 13 * Math.log2(1 + gap * 1500));
    at.push(at[index - 1] + state.zoom * room);
  }
  const x = (time) => {
    let low = 0, high = sorted.length - 1;
    if (time <= sorted[0]) return at[0];
    if (time >= sorted[high]) return at[high];
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (sorted[middle] <= time) low = middle; else high = middle;
    }
    const share = (time - sorted[low]) / (sorted[high] - sorted[low]);
    return at[low] + share * (at[high] - at[low]);
  };
  return {x, sorted, width: at[at.length - 1] + 160};
}

// ------------------------------------------------------------------ bars of one lane lie below each other

const BAR = 15, TOP = 46;
function layout(x) {
  const bars = shown.filter((item) => item.kind === 'bar' && item.tone !== 'fsync' && item.lane >= 0);
  const rows = story.lanes.map(() => []);
  for (const item of bars) {
    const ends = rows[item.lane];
    let row = ends.findIndex((end) => end <= x(item.at));
    if (row < 0) row = ends.length < 12 ? ends.push(0) - 1 : 11;
    ends[row] = x(item.end) + 3;
    item.row = row;
  }
  let y = TOP;
  const used = new Set(shown.flatMap((item) => [item.lane, item.to]));
  return story.lanes.map(([, what], lane) => {
    if (!used.has(lane)) return null;
    const here = y + (what === 'node' ? 34 : 26);
    y = here + rows[lane].length * BAR + (what === 'node' ? 38 : 26);
    return {y: here, bottom: y - (what === 'node' ? 26 : 18)};
  });
}

const taken = [];
function free(x, y, text) {
  const box = [x, y - 11, x + 6.2 * text.length, y + 2];
  for (let index = taken.length - 1; index >= 0 && index > taken.length - 400; index -= 1) {
    const other = taken[index];
    if (box[0] < other[2] && other[0] < box[2] && box[1] < other[3] && other[1] < box[3]) return false;
  }
  taken.push(box);
  return true;
}

function draw() {
  shown = items.filter(wanted);
  const {x, sorted, width} = axis();
  places = layout(x);
  const height = Math.max(TOP + 40, ...places.filter(Boolean).map((place) => place.bottom + 30));
  const names = byId('names');
  names.replaceChildren();
  names.style.width = (1.6 + 0.55 * Math.max(4, ...story.lanes.map(([name]) => Math.min(24, name.length)))) + 'rem';
  names.style.height = height + 'px';
  const svg = byId('picture');
  svg.replaceChildren();
  svg.setAttribute('width', width);
  svg.setAttribute('height', height);
  const defs = make('defs', {}, svg);
  const hatch = make('pattern', {id: 'hatch', width: 7, height: 7, patternUnits: 'userSpaceOnUse', patternTransform: 'rotate(45)'}, defs);
  make('rect', {width: 7, height: 7, fill: 'var(--bg)'}, hatch);
  make('rect', {width: 2, height: 7, fill: 'var(--down)', 'fill-opacity': .55}, hatch);
  let before = -100;
  for (const time of sorted) {
    if (x(time) < before + 85) continue;
    before = x(time);
    make('line', {class: 'tick', x1: before, x2: before, y1: 18, y2: height}, svg);
    make('text', {class: 'soft', x: before + 3, y: 13}, svg, time.toFixed(3) + ' s');
  }
  story.lanes.forEach(([name, what], lane) => {
    if (!places[lane]) return;
    make('line', {class: 'rail', x1: 0, x2: width, y1: places[lane].y, y2: places[lane].y}, svg);
    const label = plain('div', names, name.length > 24 ? name.slice(0, 23) + '…' : name, what);
    label.title = name;
    label.style.top = places[lane].y + 'px';
  });
  taken.length = 0;
  nodes = [];
  const order = shown.map((item, place) => place).sort((a, b) =>
    (KINDS[shown[a].kind] - KINDS[shown[b].kind]) || ((shown[b].tone === 'fsync') - (shown[a].tone === 'fsync')) || (a - b));
  for (const place of order) {
    const item = shown[place];
    const tone = item.kind === 'broken' ? 'brk' : item.tone || 'plain';
    const group = make('g', {class: 'it ' + item.kind + ' ' + tone, 'data-place': place}, svg);
    make('title', {}, group, digits(item.at) + ': ' + item.says);
    DRAW[item.kind](group, item, x, height);
    nodes[place] = group;
  }
  make('line', {id: 'cursor', y1: 16, y2: height}, svg);
  listed();
  const slider = byId('step');
  slider.max = Math.max(0, shown.length - 1);
  byId('count').textContent = shown.length === items.length ? items.length + ' events'
    : shown.length + ' of ' + items.length + ' events';
  go(Math.min(state.step, shown.length - 1), false);
}

const DRAW = {
  packet(group, item, x) {
    const one = places[item.lane], two = places[item.to];
    if (!one || !two) return;
    const x1 = x(item.at), y1 = one.y, lost = item.end === null;
    let x2 = lost ? x1 + 22 : x(item.end), y2 = two.y;
    if (lost) {
      group.classList.add('lost');
      y2 = y1 + (y2 - y1) * .45;
    }
    const long = Math.hypot(x2 - x1, y2 - y1) || 1, ux = (x2 - x1) / long, uy = (y2 - y1) / long;
    make('path', {d: `M${x1} ${y1}L${x2 - 5 * ux} ${y2 - 5 * uy}`}, group);
    if (lost) make('path', {d: `M${x2 - 4} ${y2 - 4}l8 8m0 -8l-8 8`, style: 'stroke-dasharray:none'}, group);
    else make('polygon', {points: `${x2},${y2} ${x2 - 8 * ux - 3.5 * uy},${y2 - 8 * uy + 3.5 * ux} ${x2 - 8 * ux + 3.5 * uy},${y2 - 8 * uy - 3.5 * ux}`}, group);
    for (const share of lost ? [1.25] : [.5, .3, .7]) {
      const tx = x1 + (x2 - x1) * share + 5, ty = y1 + (y2 - y1) * share + 4;
      if (free(tx, ty, item.text)) {
        make('text', {x: tx, y: ty}, group, item.text);
        break;
      }
    }
  },
  bar(group, item, x) {
    const place = places[item.lane];
    if (!place) return;
    const x1 = x(item.at), wide = Math.max(3, x(item.end) - x1);
    if (item.tone === 'fsync') {
      make('rect', {x: x1, y: place.y - 3, width: wide, height: 6}, group);
      return;
    }
    const y = place.y + 8 + item.row * BAR;
    make('rect', {x: x1, y, width: wide, height: BAR - 3}, group);
    const room = Math.floor((wide - 6) / 6.2);
    if (room >= 3) make('text', {x: x1 + 4, y: y + 10}, group, item.text.length > room ? item.text.slice(0, room - 1) + '…' : item.text);
  },
  down(group, item, x) {
    const place = places[item.lane];
    if (place) make('rect', {x: x(item.at), y: place.y - 8, width: Math.max(3, x(item.end) - x(item.at)), height: 16}, group);
  },
  fault(group, item, x, height) {
    const place = places[item.lane], x1 = x(item.at), wide = Math.max(4, x(item.end) - x1);
    if (place) make('rect', {x: x1, y: place.y - 20, width: wide, height: place.bottom - place.y + 26}, group);
    else {
      make('rect', {x: x1, y: 18, width: wide, height: 26}, group);
      make('rect', {x: x1, y: 44, width: wide, height: height - 44, class: 'faint'}, group);
    }
    for (const y of place ? [place.y - 12] : [29, 41]) {
      if (free(x1 + 3, y, item.text)) {
        make('text', {x: x1 + 3, y}, group, item.text);
        break;
      }
    }
  },
  mark(group, item, x, height) {
    const place = places[item.lane], at = x(item.at);
    if (!place) {
      make('path', {d: `M${at} 18V${height}`, 'stroke-dasharray': '2 4'}, group);
      if (free(at + 3, 29, item.text)) make('text', {x: at + 3, y: 29}, group, item.text);
      return;
    }
    make('circle', {cx: at, cy: place.y, r: 3.5}, group);
    for (const y of [place.y - 8, place.y - 19]) {
      if (free(at - 3, y, item.text)) {
        make('text', {x: at - 3, y}, group, item.text);
        break;
      }
    }
  },
  broken(group, item, x, height) {
    const at = x(item.at), place = places[item.lane];
    make('path', {d: `M${at} 18V${height}`}, group);
    make('text', {x: at + 6, y: height - 8}, group, item.text);
    if (place) make('circle', {cx: at, cy: place.y, r: 6}, group);
  },
};

// ------------------------------------------------------------------ steps

function listed() {
  const list = byId('list');
  list.replaceChildren();
  shown.forEach((item, place) => {
    const line = plain('li', list, undefined, item.kind === 'broken' ? 'b' : '');
    line.dataset.place = place;
    plain('span', line, item.at.toFixed(4));
    plain('span', line, item.says);
  });
}

function go(step, scroll = true) {
  state.step = Math.max(0, Math.min(step, shown.length - 1));
  const item = shown[state.step];
  byId('step').value = state.step;
  for (const line of document.querySelectorAll('.now')) line.classList.remove('now');
  nodes.forEach((group, place) => group.classList.toggle('future', place > state.step));
  const now = byId('now');
  now.replaceChildren();
  if (!item) {
    byId('where').textContent = 'nothing to show';
    plain('span', now, 'No event is of this message. Esc shows all again.');
    return;
  }
  byId('where').textContent = (state.step + 1) + ' / ' + shown.length + ' · ' + digits(item.at);
  byId('step').setAttribute('aria-valuetext', item.says);
  plain('b', now, digits(item.at));
  plain('span', now, item.says);
  nodes[state.step].classList.add('now');
  const line = byId('list').children[state.step];
  line.classList.add('now');
  const at = axisOf(item), frame = byId('frame'), list = byId('list'), cursor = byId('cursor');
  cursor.setAttribute('x1', at);
  cursor.setAttribute('x2', at);
  if (!scroll) return;
  const left = byId('names').offsetWidth;
  if (at < frame.scrollLeft + 40 || at > frame.scrollLeft + frame.clientWidth - left - 80) frame.scrollLeft = at - (frame.clientWidth - left) / 2;
  if (line.offsetTop < list.scrollTop + list.offsetTop || line.offsetTop > list.scrollTop + list.offsetTop + list.clientHeight - 40) list.scrollTop = line.offsetTop - list.offsetTop - list.clientHeight / 2;
}
let measured = null;
function axisOf(item) {
  if (!measured || measured.shown !== shown) measured = {shown, x: axis().x};
  return measured.x(item.at);
}

function set(change) {
  const item = shown[state.step];
  Object.assign(state, change);
  measured = null;
  shown = items.filter(wanted);
  const same = shown.indexOf(item);
  state.step = same >= 0 ? same : shown.length - 1;
  byId('find').value = state.find;
  draw();
  go(state.step);
}

byId('find').addEventListener('input', (event) => set({find: event.target.value.trim()}));
for (const name of ['quiet', 'fsyncs', 'holds']) byId(name).addEventListener('change', (event) => set({[name]: event.target.checked}));
byId('axis').addEventListener('change', (event) => set({even: event.target.value === 'even'}));
byId('wider').addEventListener('click', () => set({zoom: Math.min(16, state.zoom * 1.4)}));
byId('closer').addEventListener('click', () => set({zoom: Math.max(.1, state.zoom / 1.4)}));
byId('step').addEventListener('input', (event) => go(+event.target.value));
const clicked = (event) => {
  const found = event.target.closest('[data-place]');
  if (found) go(+found.dataset.place);
};
byId('picture').addEventListener('click', clicked);
byId('list').addEventListener('click', clicked);
addEventListener('keydown', (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === 'Escape') {
    set({find: ''});
    document.activeElement.blur();
    return;
  }
  if (event.target.id === 'find') return;
  const far = event.shiftKey ? 10 : 1;
  const keys = {
    ArrowRight: () => go(state.step + far), ArrowLeft: () => go(state.step - far),
    Home: () => go(0), End: () => go(shown.length - 1),
    '/': () => byId('find').focus(), '+': () => byId('wider').click(), '=': () => byId('wider').click(), '-': () => byId('closer').click(),
    h: () => byId('quiet').click(), f: () => byId('fsyncs').click(),
  };
  if (keys[event.key]) {
    event.preventDefault();
    keys[event.key]();
  }
});

document.title = story.title;
byId('title').textContent = story.title;
for (const line of story.about) plain('p', byId('about'), line);
story.broken.slice(0, 5).forEach((text) => plain('div', byId('verdict'), text, 'broken'));
if (story.broken.length > 5) plain('div', byId('verdict'), 'and ' + (story.broken.length - 5) + ' more', 'broken');
byId('left').textContent = story.left_out;
byId('fsyncs').closest('label').hidden = !items.some((item) => item.tone === 'fsync');
byId('quiet').closest('label').hidden = !items.some((item) => item.tone === 'quiet');
const messages = new Set();
for (const item of items) for (const [producer, start, stop] of item.ids) if (messages.size < 300) for (let n = start; n < Math.min(stop, start + 20); n += 1) messages.add(withoutNonce(producer) + '[' + n + ']');
for (const name of messages) plain('option', byId('messages')).value = name;
state.find = story.focus;
shown = items.filter(wanted);
const broke = shown.findIndex((item) => item.kind === 'broken');
state.step = broke >= 0 ? broke : shown.length - 1;
byId('find').value = state.find;
draw();
go(state.step);
