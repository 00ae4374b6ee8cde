// What is selected: a component with its rows, or a branch of the tree.
const LISTED = 25;

function rowLine(name, columns, place, options = {}) {
  const head = el('th', { scope: 'row' }, name);
  return el('tr', { class: options.class || null, 'data-row': options.row },
    head, ...columns.map((column) => el('td', { class: Array.isArray(column) ? 'n' : null },
      options.rounded ? soFar(cell(column, place)) : shown(cell(column, place)))),
    el('td', { class: 'n' }, options.density === undefined ? '' : format(options.density, 4)));
}

function rowsTable(k) {
  const typical = COMPONENTS.typical[k];
  const others = ROWS_OF[k].filter((row) => row !== typical);
  if (state.row >= 0 && ROWS.component[state.row] === k) {
    const at = others.indexOf(state.row);
    if (at > 0) others.unshift(...others.splice(at, 1));
  }
  const rows = (typical < 0 ? others : [typical, ...others]).slice(0, LISTED);
  const known = COMPONENTS.centre.some((column) => cell(column, k) !== null);
  const lines = [];
  if (known) lines.push(rowLine('centre', COMPONENTS.centre, k, { class: 'special', rounded: true }));
  rows.forEach((row) => {
    const name = [el('button', {
      type: 'button', class: 'link', 'aria-label': `Show ${rowName(row)} on the map`,
      onclick: () => select(k, row),
    }, rowName(row)), row === typical ? el('span', { class: 'muted' }, ' typical') : null];
    const marks = [row === typical ? 'special' : '', row === state.row ? 'selected' : ''].join(' ').trim();
    lines.push(rowLine(name, ROWS.cells, row, { class: marks || null, density: ROWS.density[row], row }));
  });
  const count = COMPONENTS.rows[k];
  const caption = rows.length
    ? `${format(rows.length)} of its ${format(count)} rows, with their log-densities`
    : count ? 'None of its rows is in this report.' : 'No row has it as the most probable component.';
  return [el('p', { class: 'muted note' }, caption),
    el('div', { class: 'scroll tall', tabindex: 0, role: 'region', 'aria-label': `Rows of component ${k}` },
      el('table', { id: 'rows-table' },
        el('thead', {}, el('tr', {}, el('th', { scope: 'col' }, ROWS.id ? ROWS.idName : 'row'),
          ...DATA.columns.map((name, d) => el('th', { scope: 'col', class: Array.isArray(ROWS.cells[d]) ? 'n' : null }, name)),
          el('th', { scope: 'col', class: 'n' }, 'log-density'))),
        el('tbody', {}, ...lines)))];
}

// Grey levels from the least value to the largest; loadings have zero in the middle.
function picture(values, name, isSigned) {
  const [height, width] = DATA.pictures.shape;
  const top = Math.max(...values.map((value) => (isSigned ? Math.abs(value) : value)));
  const least = isSigned ? -top : Math.min(...values);
  const canvas = el('canvas', { width, height, class: 'picture', role: 'img', 'aria-label': name });
  const context = canvas.getContext('2d');
  const image = context.createImageData(width, height);
  values.forEach((value, place) => {
    const grey = Math.round(255 * (value - least) / (top - least || 1));
    image.data.set([grey, grey, grey, 255], 4 * place);
  });
  context.putImageData(image, 0, 0);
  return el('figure', { class: 'picture' }, canvas, el('figcaption', { class: 'muted' }, name));
}

function pictures(k) {
  if (!DATA.pictures) return [];
  const centre = COMPONENTS.centre.map((column) => cell(column, k));
  if (!centre.every((value) => typeof value === 'number')) return [];
  return [picture(centre, 'centre', false),
    ...DATA.pictures.loadings[k].map((values, h) => picture(values, `loading ${h + 1}`, true))];
}

function componentSheet(k) {
  const facts = [
    ['weight', format(COMPONENTS.weight[k], 3)],
    ['rows', `${format(COMPONENTS.rows[k])} of those looked at`],
    ['volume', COMPONENTS.side[k] === null ? '–' : `a cube of side ${format(COMPONENTS.side[k], 3)}`],
    ['nearest', COMPONENTS.neighbour[k] < 0 ? '–' : [link(COMPONENTS.neighbour[k]),
      `, ${format(COMPONENTS.separation[k], 3)} standard deviations apart`]],
  ];
  if (state.labels) {
    facts.push(['cluster', [el('span', { class: 'swatch', style: `background:${componentColour(k)}` }),
      `${labelOf(k)} of ${format(state.level)}`]]);
  }
  return el('div', { class: 'sheet' },
    el('dl', {}, ...facts.flatMap(([name, value]) => [el('dt', {}, name), el('dd', {}, ...[value].flat())])),
    el('div', {}, ...pictures(k), ...rowsTable(k)));
}

function groupSheet() {
  const members = [...state.group].sort((a, b) => COMPONENTS.weight[b] - COMPONENTS.weight[a]);
  const weight = members.reduce((sum, k) => sum + COMPONENTS.weight[k], 0);
  const rows = members.reduce((sum, k) => sum + COMPONENTS.rows[k], 0);
  const named = members.slice(0, 40).flatMap((k, place) => [place ? ', ' : '', link(k)]);
  return el('div', {},
    el('p', {}, `Weight ${format(weight, 3)}, ${format(rows)} rows. The table below shows its components.`),
    el('p', {}, ...named, members.length > 40 ? ` and ${format(members.length - 40)} more` : ''));
}

function startDetails() {
  function draw() {
    const title = byId('details-title');
    const body = byId('details-body');
    if (state.component >= 0) {
      title.textContent = `Component ${state.component}`;
      body.replaceChildren(componentSheet(state.component));
    } else if (state.group) {
      title.textContent = state.groupName;
      body.replaceChildren(groupSheet());
    } else {
      title.textContent = 'No component is selected';
      body.replaceChildren(el('p', { class: 'muted' }, 'Choose one on the map, in the tree or in the table to see its rows.'));
    }
  }
  listen('select', draw);
  listen('level', draw);
  listen('theme', draw);
  draw();
}
