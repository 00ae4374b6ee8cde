// The table of components: sorted, searched, page by page.
const PAGE = 20;
const typicalText = (k) => {
  const row = COMPONENTS.typical[k];
  if (row < 0) return COMPONENTS.rows[k] ? 'not in this report' : 'no row';
  return row;
};
const HEADS = [
  ['component', 'Component', '', (k) => k, ''],
  ['cluster', 'Cluster', '', (k) => labelOf(k), 'Cluster at the cut of the tree'],
  ['weight', 'Weight', 'n', (k) => COMPONENTS.weight[k], 'Share of all rows'],
  ['rows', 'Rows', 'n', (k) => COMPONENTS.rows[k], 'Rows of this report whose most probable component it is'],
  ['volume', 'Volume (side)', 'n', (k) => COMPONENTS.side[k],
    'Side of a cube with the volume of the component: 0.1 is a tenth of the spread of the columns'],
  ['neighbour', 'Nearest', 'n', (k) => COMPONENTS.neighbour[k], 'Nearest other component'],
  ['apart', 'Apart', 'n', (k) => COMPONENTS.separation[k], 'Distance to the nearest one, in standard deviations'],
  ['typical', 'Typical row', '', (k) => (COMPONENTS.typical[k] < 0 ? null : ROWS.number[COMPONENTS.typical[k]]),
    'Row nearest to the centre of the component'],
];

function startTable() {
  const table = byId('component-table');
  const heads = TREE ? HEADS : HEADS.filter(([key]) => key !== 'cluster');
  const values = Object.fromEntries(heads.map(([key, , , value]) => [key, value]));
  let sorted = { key: 'weight', falling: true };
  let page = 0;
  let found = [];
  const heaviest = COMPONENTS.weight[BY_WEIGHT[0]] || 1;

  // What a search for words looks at, made when it is first needed.
  const texts = new Array(K);
  function textOf(k) {
    if (texts[k] === undefined) {
      const words = [`component ${k}`];
      const rows = COMPONENTS.typical[k] < 0 ? ROWS_OF[k] : [COMPONENTS.typical[k], ...ROWS_OF[k]];
      rows.slice(0, 9).forEach((row, place) => {
        words.push(rowName(row));
        if (place === 0) DATA.columns.forEach((name, d) => words.push(`${name} ${shown(cell(ROWS.cells[d], row))}`));
      });
      texts[k] = words.join(' ').toLowerCase();
    }
    return texts[k];
  }
  function test(word) {
    const condition = /^(weight|rows|volume|apart|cluster|component)(<=|>=|<|>|=)(-?[\d.]+(?:e-?\d+)?)$/.exec(word);
    if (condition && values[condition[1]]) {
      const [, key, sign, text] = condition;
      const limit = Number(text);
      const holds = {
        '<': (v) => v < limit, '>': (v) => v > limit, '<=': (v) => v <= limit, '>=': (v) => v >= limit, '=': (v) => v === limit,
      }[sign];
      return (k) => values[key](k) !== null && holds(values[key](k));
    }
    if (/^#?\d+$/.test(word)) {
      const number = Number(word.replace('#', ''));
      const whole = new RegExp(`(^|[^\\d.])${word.replace('#', '')}([^\\d.]|$)`);
      return (k) => k === number || (!word.startsWith('#') && whole.test(textOf(k)));
    }
    return (k) => textOf(k).includes(word);
  }

  function search() {
    const words = byId('search').value.toLowerCase().split(/\s+/).filter(Boolean);
    const tests = words.map(test);
    found = [];
    for (let k = 0; k < K; k += 1) {
      if (state.group && !state.group.has(k)) continue;
      if (tests.every((holds) => holds(k))) found.push(k);
    }
    const value = values[sorted.key];
    const sign = sorted.falling ? -1 : 1;
    found.sort((a, b) => {
      const [one, other] = [value(a), value(b)];
      if (one === null || other === null) return (one === null) - (other === null) || a - b;
      return sign * (one - other) || a - b;
    });
    const narrowed = words.length || state.group;
    byId('table-said').textContent = narrowed
      ? `${format(found.length)} of ${format(K)} components${state.group ? ` · ${state.groupName.toLowerCase()}` : ''}`
      : `${format(K)} components`;
    byId('clear-button').hidden = !narrowed;
  }

  function line(k) {
    const cells = heads.map(([key, , side, value]) => {
      if (key === 'component') return el('td', {}, link(k));
      if (key === 'cluster') return el('td', {}, el('span', { class: 'swatch', style: `background:${componentColour(k)}` }), labelOf(k));
      if (key === 'weight') {
        const share = Math.max(0, 100 * (COMPONENTS.weight[k] / heaviest));
        return el('td', { class: 'n' }, el('span', { class: 'weight' },
          el('i', { style: `width:${share.toFixed(1)}%` }), el('span', {}, format(COMPONENTS.weight[k], 3))));
      }
      if (key === 'neighbour') return el('td', { class: 'n' }, COMPONENTS.neighbour[k] < 0 ? '–' : link(COMPONENTS.neighbour[k]));
      if (key === 'typical') return el('td', { class: 'typical' }, ...typicalCells(k));
      return el('td', { class: side }, format(value(k), 3));
    });
    return el('tr', {
      class: isSelected(k) && !state.group ? 'selected' : null, 'data-component': k, onclick: () => select(k),
    }, ...cells);
  }

  function draw() {
    const pages = Math.max(1, Math.ceil(found.length / PAGE));
    page = Math.min(Math.max(0, page), pages - 1);
    const part = found.slice(page * PAGE, (page + 1) * PAGE);
    table.tBodies[0].replaceChildren(...part.map(line));
    if (!part.length) {
      table.tBodies[0].append(el('tr', {}, el('td', { colspan: heads.length, class: 'muted' }, 'No component fits the search.')));
    }
    byId('page-said').textContent = `Page ${format(page + 1)} of ${format(pages)}`;
    byId('page-back').disabled = page === 0;
    byId('page-on').disabled = page >= pages - 1;
  }
  function update(first = true) {
    if (first) page = 0;
    search();
    draw();
  }
  function head() {
    table.tHead.replaceChildren(el('tr', {}, ...heads.map(([key, name, side, , meaning]) => el('th', {
      scope: 'col', class: side || null, title: meaning || null, 'data-key': key,
      'aria-sort': sorted.key !== key ? 'none' : sorted.falling ? 'descending' : 'ascending',
    }, el('button', {
      type: 'button',
      onclick: () => {
        // Large weights and volumes are looked for first, small numbers of components too.
        const falling = sorted.key === key ? !sorted.falling : !['component', 'cluster', 'neighbour', 'typical', 'apart'].includes(key);
        sorted = { key, falling };
        head();
        table.tHead.querySelector(`[data-key="${key}"] button`).focus();
        update();
      },
    }, name)))));
  }

  byId('search').addEventListener('input', () => update());
  byId('clear-button').addEventListener('click', () => {
    byId('search').value = '';
    if (state.group) clearSelection();
    else update();
  });
  byId('page-back').addEventListener('click', () => { page -= 1; draw(); });
  byId('page-on').addEventListener('click', () => { page += 1; draw(); });
  let grouped = false;
  listen('select', () => {
    // The selected component is brought into view, unless a search has left it out.
    const was = grouped;
    grouped = state.group !== null;
    if (grouped || was) update();
    const place = found.indexOf(state.component);
    if (place >= 0) page = Math.floor(place / PAGE);
    draw();
  });
  listen('level', () => update(false));
  listen('theme', draw);
  head();
  update();
}

function typicalCells(k) {
  const row = typicalText(k);
  if (typeof row === 'string') return [el('span', { class: 'label' }, row)];
  const parts = [];
  if (ROWS.id) parts.push(el('strong', {}, ROWS.id[row]), ' ');
  const columns = DATA.columns.slice(0, 4);
  columns.forEach((name, d) => {
    if (d) parts.push(' · ');
    parts.push(el('span', { class: 'label' }, `${name} `), shown(cell(ROWS.cells[d], row)));
  });
  if (DATA.columns.length > 4) parts.push(' · …');
  return parts;
}
