// What all parts share: the data, elements without markup from the data, numbers, and one selection.
const DATA = JSON.parse(document.getElementById('data').textContent);
const COMPONENTS = DATA.components;
const ROWS = DATA.rows;
const K = COMPONENTS.weight.length;
const byId = (id) => document.getElementById(id);

// Texts only ever become text nodes or attributes, so nothing in the data can become markup.
function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith('on')) node.addEventListener(name.slice(2), value);
    else if (name === 'style') node.style.cssText = value;
    else node.setAttribute(name, value === true ? '' : String(value));
  }
  for (const child of children.flat()) {
    if (child === null || child === undefined) continue;
    node.append(child instanceof Node ? child : String(child));
  }
  return node;
}
const el = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
const svg = (tag, attributes, ...children) =>
  fill(document.createElementNS('http://www.w3.org/2000/svg', tag), attributes, children);

function format(value, digits = 4) {
  if (value === null || value === undefined) return '–';
  if (typeof value !== 'number') return String(value);
  if (Number.isInteger(value)) {
    return Math.abs(value) < 1e15 ? value.toLocaleString('en-GB') : value.toExponential(3);
  }
  const size = Math.abs(value);
  if (size >= 1e6 || size < 1e-4) return value.toExponential(Math.max(0, digits - 2));
  return String(Number(value.toPrecision(digits)));
}

// Cells of rows and centres: columns of numbers, or of codes with their texts.
function cell(column, place) {
  if (Array.isArray(column)) return column[place];
  const code = column.codes[place];
  return code < 0 ? null : column.texts[code];
}
// Whole numbers of a table are often years or codes: they have no commas.
const shown = (value) => (Number.isInteger(value) ? String(value) : format(value, 5));
const rowName = (row) => (ROWS.id ? ROWS.id[row] : `row ${ROWS.number[row].toLocaleString('en-GB')}`);

const ROWS_OF = Array.from({ length: K }, () => []);
ROWS.component.forEach((component, row) => ROWS_OF[component].push(row));
const BY_WEIGHT = COMPONENTS.weight.map((_, k) => k)
  .sort((a, b) => COMPONENTS.weight[b] - COMPONENTS.weight[a] || a - b);

// One selection for the map, the tree, the table and the rows. A group is a branch of the tree.
const state = { component: -1, group: null, groupName: '', row: -1, level: 1, labels: null, dark: false };
const listeners = { select: [], level: [], theme: [] };
const listen = (what, listener) => listeners[what].push(listener);
const tell = (what) => listeners[what].forEach((listener) => listener());
const say = (text) => { byId('said').textContent = text; };

function select(component, row = -1) {
  Object.assign(state, { component, row, group: null, groupName: '' });
  if (component >= 0) {
    say(`Component ${component}, weight ${format(COMPONENTS.weight[component], 3)}, `
      + `${format(COMPONENTS.rows[component])} rows`);
  }
  tell('select');
}
function selectGroup(components, name) {
  Object.assign(state, { component: -1, row: -1, group: new Set(components), groupName: name });
  say(`${name}: ${components.length} components`);
  tell('select');
}
function clearSelection() {
  Object.assign(state, { component: -1, row: -1, group: null, groupName: '' });
  say('Nothing is selected');
  tell('select');
}
const isSelected = (k) => k === state.component || (state.group !== null && state.group.has(k));
const hasSelection = () => state.component >= 0 || state.group !== null;

const link = (component) => el('button', {
  type: 'button', class: 'link', onclick: (event) => { event.stopPropagation(); select(component); },
}, component);

// Colours of the style sheet, for canvases.
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
const isDark = () => state.dark;

// A canvas with as many points as the screen has, and its size in those of the style sheet.
function prepare(canvas) {
  const ratio = window.devicePixelRatio || 1;
  const width = canvas.clientWidth;
  const height = canvas.clientHeight;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
  }
  const context = canvas.getContext('2d');
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  context.font = '11px system-ui, sans-serif';
  return { context, width, height };
}

// Draw once per frame, however often it is asked for.
function drawer(draw) {
  let asked = false;
  return () => {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => { asked = false; draw(); });
  };
}

// Round numbers that divide a range.
function ticks(low, high, n) {
  if (!(high > low)) return [low];
  const rough = (high - low) / n;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((m) => m * power).find((size) => size >= rough);
  const found = [];
  for (let i = Math.ceil(low / step); i * step <= high + 1e-9 * step; i += 1) found.push(i * step);
  return found;
}
const tickText = (value) => format(Math.abs(value) < 1e-12 ? 0 : Number(value.toPrecision(6)));

const tip = byId('tip');
function showTip(event, text) {
  tip.hidden = !text;
  if (!text) return;
  tip.textContent = text;
  const right = event.clientX + 14 + tip.offsetWidth > window.innerWidth;
  tip.style.left = `${right ? event.clientX - tip.offsetWidth - 10 : event.clientX + 14}px`;
  tip.style.top = `${Math.min(event.clientY + 14, window.innerHeight - tip.offsetHeight - 4)}px`;
}

// Pointer, wheel, keys and buttons of a picture that can be dragged, zoomed and asked what is where.
// A wheel alone scrolls the page; over the picture that has the focus it zooms.
function wire(canvas, { find, about, hover, pick, move, zoom, reset, arrow }) {
  let dragged = null;
  let hovered = -1;
  const over = (event, found) => {
    if (found !== hovered) {
      hovered = found;
      hover(found);
    }
    showTip(event, found < 0 ? '' : about(found));
  };
  canvas.addEventListener('pointerdown', (event) => {
    dragged = { x: event.clientX, y: event.clientY, far: 0 };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener('pointermove', (event) => {
    if (!dragged) {
      over(event, find(event.offsetX, event.offsetY));
      return;
    }
    const [dx, dy] = [event.clientX - dragged.x, event.clientY - dragged.y];
    dragged.far += Math.abs(dx) + Math.abs(dy);
    if (dragged.far > 4) move(dx, dy);
    [dragged.x, dragged.y] = [event.clientX, event.clientY];
  });
  canvas.addEventListener('pointerup', (event) => {
    const still = dragged && dragged.far <= 4;
    dragged = null;
    if (still) pick(find(event.offsetX, event.offsetY));
  });
  // The browser takes the pointer away, to scroll for instance: no pointerup follows.
  canvas.addEventListener('pointercancel', () => { dragged = null; });
  canvas.addEventListener('pointerleave', (event) => over(event, -1));
  canvas.addEventListener('wheel', (event) => {
    if (document.activeElement !== canvas && !event.ctrlKey) return;
    event.preventDefault();
    zoom(Math.exp(-event.deltaY * 0.0016), event.offsetX, event.offsetY);
  }, { passive: false });
  canvas.addEventListener('dblclick', (event) => zoom(2, event.offsetX, event.offsetY));
  canvas.addEventListener('keydown', (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key.startsWith('Arrow')) arrow(event.key, event.shiftKey);
    else if (event.key === '+' || event.key === '=') zoom(1.5);
    else if (event.key === '-') zoom(1 / 1.5);
    else if (event.key === '0') reset();
    else return;
    event.preventDefault();
  });
  byId(`${canvas.id}-in`).addEventListener('click', () => zoom(1.5));
  byId(`${canvas.id}-out`).addEventListener('click', () => zoom(1 / 1.5));
  byId(`${canvas.id}-reset`).addEventListener('click', reset);
}
