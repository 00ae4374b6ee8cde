// Charts that need no canvas: the course of the fit. Those of columns are in columns.js.
function drawCurve() {
  const trace = DATA.trace;
  const place = byId('curve');
  if (!trace) {
    place.append(el('p', { class: 'muted' }, 'The model has no record of its fit.'));
    return;
  }
  // As wide as its place, so that texts have their size.
  const width = Math.min(640, Math.max(280, place.clientWidth || 560));
  const height = 230, left = 58, bottom = 30, top = 10, right = 12;
  const lines = [['train', trace.log_likelihood, 'rows of the fit']];
  if (trace.validation.length) lines.push(['model', trace.validation, 'validation rows']);
  const all = lines.flatMap(([, values]) => values.filter((v) => v !== null));
  if (!all.length) {
    place.append(el('p', { class: 'muted' }, 'The record holds no finite log-likelihood.'));
    return;
  }
  // The first steps of a fit may be far below; the end is what there is to see.
  const late = lines.flatMap(([, values]) => values.slice(Math.floor(values.length / 5)))
    .filter((v) => v !== null);
  let low = Math.min(...late);
  let high = Math.max(...all);
  const margin = 0.06 * (high - low) || 0.01 * Math.max(1, Math.abs(high));
  low -= margin;
  high += margin;
  const first = trace.epoch[0] < 1 ? 0 : trace.epoch[0];
  const last = trace.epoch[trace.epoch.length - 1];
  const x = (v) => left + ((width - left - right) * (v - first)) / (last - first || 1);
  const y = (v) => height - bottom - ((height - bottom - top) * (v - low)) / (high - low);
  const chart = svg('svg', {
    viewBox: `0 0 ${width} ${height}`, role: 'img',
    'aria-label': `Log-likelihood per row by passes: from ${format(all[0])} to `
      + `${format(trace.log_likelihood[trace.log_likelihood.length - 1])} in ${format(last, 3)} passes`,
  });
  for (const value of ticks(low, high, 4)) {
    chart.append(svg('line', { class: 'grid', x1: left, x2: width - right, y1: y(value), y2: y(value) }));
    chart.append(svg('text', { x: left - 6, y: y(value) + 4, 'text-anchor': 'end' }, tickText(value)));
  }
  for (const value of ticks(first, last, width < 400 ? 4 : 6)) {
    chart.append(svg('text', { x: x(value), y: height - bottom + 16, 'text-anchor': 'middle' }, tickText(value)));
  }
  chart.append(svg('text', { x: width - right, y: height - 2, 'text-anchor': 'end' }, 'passes'));
  let below = false;
  for (const [style, values] of lines) {
    const points = [];
    values.forEach((value, i) => {
      if (value === null) return;
      below = below || value < low;
      points.push(`${x(trace.epoch[i]).toFixed(1)},${y(Math.max(value, low)).toFixed(1)}`);
    });
    chart.append(svg('polyline', { class: style, points: points.join(' ') }));
    if (points.length === 1) {
      const [cx, cy] = points[0].split(',');
      chart.append(svg('circle', { class: style, cx, cy, r: 3 }));
    }
  }
  place.append(chart);
  place.append(el('p', { class: 'note muted' },
    ...lines.flatMap(([style, , name]) => [
      el('span', { class: `key line ${style}` }), `log-likelihood per row, ${name} `]),
    trace.isEncoded ? '(in the coordinates of the mixture) ' : '',
    below ? '· the start lies below the picture' : ''));
}

function startVerdict() {
  const verdict = DATA.verdict;
  byId('headline').textContent = verdict.headline;
  byId('next').textContent = verdict.next;
  byId('facts').append(...verdict.facts.map(([name, value, meaning]) => el('div', {},
    el('dt', {}, name), el('dd', { class: 'value' }, value), el('dd', { class: 'meaning' }, meaning))));
  const words = { act: 'To do', note: 'Note', good: 'Good' };
  byId('findings').append(...verdict.findings.map(([kind, about, text, advice]) => el('li', { class: `is-${kind}` },
    el('div', { class: 'kind' }, words[kind], el('br'), el('span', { class: 'muted' }, about)),
    el('div', {}, el('p', {}, text), advice ? el('p', { class: 'advice' }, advice) : null))));
  byId('about').append(...DATA.about.map(([name, value]) =>
    el('div', {}, el('dt', {}, name), el('dd', {}, value))));
  drawCurve();
}
