// Columns: how rows are spread and how they should be, and where they fall in the model's spread.
const FIRST_CARDS = 12;

// As many digits as tell the ends of an axis apart.
function edgeText(edge, other) {
  if (typeof edge !== 'number' || Number.isInteger(edge)) return String(edge);
  const spread = Math.abs(edge - other) || Math.abs(edge);
  return format(edge, Math.max(3, Math.ceil(Math.log10(Math.abs(edge) / spread)) + 3));
}

function marginalChart(column) {
  return column.kind === 'levels' ? levelChart(column) : numberChart(column);
}

function numberChart(column) {
  const [width, height, bottom] = [300, 120, 18];
  const n = column.observed.length;
  const top = Math.max(...column.observed, ...column.expected, 1e-12);
  const x = (i) => (width * i) / n;
  const y = (v) => (height - bottom) * (1 - v / top) + 1;
  const chart = svg('svg', {
    viewBox: `0 0 ${width} ${height}`, role: 'img',
    'aria-label': `${column.name}: shares of rows and of the mixture in ${n} bins from ${shown(column.edges[0])} to ${shown(column.edges[n])}`,
  });
  column.observed.forEach((share, i) => chart.append(svg('rect', {
    class: 'rows', x: x(i) + 0.4, y: y(share), width: Math.max(0.5, width / n - 0.8), height: Math.max(0, height - bottom + 1 - y(share)),
  })));
  const line = column.expected.flatMap((share, i) => [`${x(i).toFixed(1)},${y(share).toFixed(1)}`, `${x(i + 1).toFixed(1)},${y(share).toFixed(1)}`]);
  chart.append(svg('polyline', { class: 'model', points: line.join(' ') }));
  chart.append(svg('line', { class: 'grid', x1: 0, x2: width, y1: height - bottom + 1, y2: height - bottom + 1 }));
  chart.append(svg('text', { x: 0, y: height - 4 }, edgeText(column.edges[0], column.edges[n])));
  chart.append(svg('text', { x: width, y: height - 4, 'text-anchor': 'end' }, edgeText(column.edges[n], column.edges[0])));
  return chart;
}

function levelChart(column) {
  const kept = column.levels.map((_, i) => i).sort((a, b) => column.observed[b] - column.observed[a]).slice(0, 7);
  const [width, height] = [300, 120];
  const line = Math.min(30, (height - 4) / kept.length);
  const top = Math.max(...kept.map((i) => Math.max(column.observed[i], column.expected[i])), 1e-12);
  const x = (v) => 110 + (width - 112) * (v / top);
  const chart = svg('svg', {
    viewBox: `0 0 ${width} ${height}`, role: 'img',
    'aria-label': `${column.name}: shares of rows and of the mixture by level, the most frequent ${kept.length} of ${column.levels.length}`,
  });
  kept.forEach((i, place) => {
    const y = place * line + 2;
    const name = String(column.levels[i]);
    chart.append(svg('text', { x: 104, y: y + line / 2 + 2, 'text-anchor': 'end' }, name.length > 16 ? `${name.slice(0, 15)}…` : name));
    chart.append(svg('rect', { class: 'rows', x: 110, y, width: Math.max(0, x(column.observed[i]) - 110), height: line - 5 }));
    chart.append(svg('line', { class: 'model', x1: x(column.expected[i]), x2: x(column.expected[i]), y1: y - 1, y2: y + line - 4 }));
  });
  return chart;
}

function calibrationChart(d, name) {
  const found = DATA.calibration;
  const shares = found.shares[d];
  const [width, height, bottom] = [300, 62, 17];
  const n = shares.length;
  const top = Math.max(...shares, found.high[d] || 0, 2 / n);
  const y = (v) => (height - bottom) * (1 - v / top) + 1;
  const chart = svg('svg', {
    viewBox: `0 0 ${width} ${height}`, role: 'img',
    'aria-label': `${name}: where rows fall in the distribution of the mixture. The bars are even if the mixture is right. Distance ${format(found.distance[d], 3)}`,
  });
  if (found.high[d] !== null) {
    chart.append(svg('rect', { class: 'band', x: 0, width, y: y(found.high[d]), height: Math.max(0, y(found.low[d]) - y(found.high[d])) }));
  }
  shares.forEach((share, i) => chart.append(svg('rect', {
    class: 'rows', x: (width * i) / n + 0.5, width: width / n - 1, y: y(share), height: Math.max(0, height - bottom + 1 - y(share)),
  })));
  chart.append(svg('line', { class: 'even', x1: 0, x2: width, y1: y(1 / n), y2: y(1 / n) }));
  chart.append(svg('text', { x: 0, y: height - 4 }, '0'));
  chart.append(svg('text', { x: width / 2, y: height - 4, 'text-anchor': 'middle' }, 'place in the distribution of the mixture'));
  chart.append(svg('text', { x: width, y: height - 4, 'text-anchor': 'end' }, '1'));
  return chart;
}

function columnCard(d) {
  const column = DATA.marginals[d];
  const found = DATA.calibration;
  const distance = found ? found.distance[d] : null;
  const off = distance !== null && distance > found.limit[d];
  return el('article', { class: 'panel card', 'data-column': d },
    el('h3', {}, column.name),
    marginalChart(column),
    distance === null ? null : calibrationChart(d, column.name),
    distance === null ? el('p', { class: 'muted' }, 'No value was seen.') : el('p', { class: off ? 'off' : 'muted' },
      `distance ${format(distance, 2)} · by chance ${format(found.limit[d], 2)}`));
}

function startColumns() {
  const n = DATA.marginals.length;
  if (!n) {
    byId('columns-note').textContent = 'Rows cannot be drawn from this mixture, so nothing is known of its columns one by one.';
    return;
  }
  const distance = (d) => (DATA.calibration ? DATA.calibration.distance[d] ?? -1 : 0);
  const order = DATA.marginals.map((_, d) => d).sort((a, b) => distance(b) - distance(a) || a - b);
  const exact = DATA.marginals.every((column) => column.exact);
  byId('columns-note').append(
    el('span', { class: 'key' }), 'rows ', el('span', { class: 'key line' }), `the mixture${exact ? '' : ' (rows drawn from it)'}. `,
    'Below: where rows fall in the distribution of the mixture. These bars are even if the mixture is right; the grey band is what chance allows. ',
    n > 1 ? 'The column that is furthest off comes first.' : '',
    DATA.columns.length > n ? ` The first ${n} of ${DATA.columns.length} columns.` : '');
  const cards = byId('column-cards');
  cards.classList.toggle('few', n < 4);
  cards.append(...order.slice(0, FIRST_CARDS).map(columnCard));
  const more = byId('columns-more');
  if (n > FIRST_CARDS) {
    more.hidden = false;
    more.textContent = `Show all ${n} columns`;
    more.addEventListener('click', () => {
      cards.append(...order.slice(FIRST_CARDS).map(columnCard));
      more.hidden = true;
    });
  }
}
