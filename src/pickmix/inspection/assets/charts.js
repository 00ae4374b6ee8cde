// Charts that need no canvas: the course of the fit, and the path over K. Those of columns are in columns.js.

// Lines over one axis. options: xs, lines [[style, values, name]], low, xName, logX, mark, label, note.
function drawLines(place, options) {
  const { xs, lines, xName } = options;
  // As wide as its place, so that texts have their size.
  const width = Math.min(640, Math.max(280, place.clientWidth || 560));
  const height = 230, left = 58, bottom = 30, top = 10, right = 12;
  const all = lines.flatMap(([, values]) => values.filter((v) => v !== null));
  let low = options.low;
  let high = Math.max(...all);
  const margin = 0.06 * (high - low) || 0.01 * Math.max(1, Math.abs(high));
  low -= margin;
  high += margin;
  const scale = options.logX ? Math.log : (v) => v;
  const first = scale(options.first ?? xs[0]);
  const last = scale(xs[xs.length - 1]);
  const x = (v) => left + ((width - left - right) * (scale(v) - first)) / (last - first || 1);
  const y = (v) => height - bottom - ((height - bottom - top) * (v - low)) / (high - low);
  const chart = svg('svg', { viewBox: `0 0 ${width} ${height}`, role: 'img', 'aria-label': options.label });
  for (const value of ticks(low, high, 4)) {
    chart.append(svg('line', { class: 'grid', x1: left, x2: width - right, y1: y(value), y2: y(value) }));
    chart.append(svg('text', { x: left - 6, y: y(value) + 4, 'text-anchor': 'end' }, tickText(value)));
  }
  const numbers = options.logX ? decades(xs[xs.length - 1]) : ticks(first, last, width < 400 ? 4 : 6);
  for (const value of numbers) {
    chart.append(svg('text', { x: x(value), y: height - bottom + 16, 'text-anchor': 'middle' }, tickText(value)));
  }
  chart.append(svg('text', { x: width - right, y: height - 2, 'text-anchor': 'end' }, xName));
  if (options.mark) {
    const at = x(options.mark);
    chart.append(svg('line', { class: 'mark', x1: at, x2: at, y1: top, y2: height - bottom }));
  }
  let below = false;
  for (const [style, values] of lines) {
    const points = [];
    values.forEach((value, i) => {
      if (value === null) return;
      below = below || value < low;
      points.push(`${x(xs[i]).toFixed(1)},${y(Math.max(value, low)).toFixed(1)}`);
    });
    chart.append(svg('polyline', { class: style, points: points.join(' ') }));
    if (points.length === 1) {
      const [cx, cy] = points[0].split(',');
      chart.append(svg('circle', { class: style, cx, cy, r: 3 }));
    }
  }
  place.append(chart);
  place.append(el('p', { class: 'note muted' },
    ...lines.flatMap(([style, , name]) => [el('span', { class: `key line ${style}` }), `${name} `]),
    options.note || '', below ? options.belowNote : ''));
}

// 1, 2, 5, 10, 20, ... up to a number.
function decades(most) {
  const found = [];
  for (let ten = 1; ten <= most; ten *= 10) found.push(...[1, 2, 5].map((v) => v * ten).filter((v) => v <= most));
  return found.length > 8 ? found.filter((v) => String(v)[0] === '1') : found;
}

function drawCurve() {
  const trace = DATA.trace;
  const place = byId('curve');
  if (!trace) {
    place.append(el('p', { class: 'muted' }, 'The model has no record of its fit.'));
    return;
  }
  const lines = [['train', trace.log_likelihood, 'log-likelihood per row, rows of the fit']];
  if (trace.validation.length) lines.push(['model', trace.validation, 'log-likelihood per row, validation rows']);
  const all = lines.flatMap(([, values]) => values.filter((v) => v !== null));
  if (!all.length) {
    place.append(el('p', { class: 'muted' }, 'The record holds no finite log-likelihood.'));
    return;
  }
  // The first steps of a fit may be far below; the end is what there is to see.
  const late = lines.flatMap(([, values]) => values.slice(Math.floor(values.length / 5))).filter((v) => v !== null);
  const last = trace.epoch[trace.epoch.length - 1];
  drawLines(place, {
    xs: trace.epoch, lines, low: Math.min(...late), first: trace.epoch[0] < 1 ? 0 : trace.epoch[0], xName: 'passes',
    label: `Log-likelihood per row by passes: from ${format(all[0])} to `
      + `${format(trace.log_likelihood[trace.log_likelihood.length - 1])} in ${format(last, 3)} passes`,
    note: trace.isEncoded ? '(in the coordinates of the mixture) ' : '', belowNote: '· the start lies below the picture',
  });
}

// How held-out rows score under every smaller mixture.
function drawPath() {
  const path = DATA.path;
  byId('path-panel').hidden = !path;
  if (!path) return;
  // A few components score far below; the bend is what there is to see.
  const values = path.score;
  const high = Math.max(...values);
  const spread = high - values[Math.floor(values.length / 4)];
  drawLines(byId('path'), {
    xs: path.n, lines: [['train', values, 'log-density per held-out row']],
    low: Math.max(Math.min(...values), high - 4 * Math.max(spread, 0.05)),
    logX: true, mark: path.chosen, xName: 'components',
    label: `Score of held-out rows by the number of components: ${path.chosen} are enough of ${path.n[path.n.length - 1]}`,
    note: `· ${path.chosen.toLocaleString('en')} components are enough (dashed)`, belowNote: ' · fewer lie below the picture',
  });
}

function startVerdict() {
  const verdict = DATA.verdict;
  byId('headline').textContent = verdict.headline;
  byId('next').textContent = verdict.next;
  byId('facts').append(...verdict.facts.map(([name, value, meaning]) => el('div', {},
    el('dt', {}, name), el('dd', { class: 'value' }, value), el('dd', { class: 'meaning' }, meaning))));
  const words = { act: 'To do', note: 'Note', good: 'Good' };
  byId('findings').append(...verdict.findings.map(({ kind, about, text, advice }) => el('li', { class: `is-${kind}` },
    el('div', { class: 'kind' }, words[kind], el('br'), el('span', { class: 'muted' }, about)),
    el('div', {}, el('p', {}, text), advice ? el('p', { class: 'advice' }, advice) : null))));
  byId('about').append(...DATA.about.map(([name, value]) =>
    el('div', {}, el('dt', {}, name), el('dd', {}, value))));
  drawCurve();
  drawPath();
}
